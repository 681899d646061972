"""What every module owes: a short docstring, light imports, no stand-ins for real objects."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "openforgerl"
HEAVY = {"torch", "transformers", "safetensors", "accelerate", "gguf"}
NOT_FOR_CONFIG = HEAVY | {"tensorboard"}
LONG_DOCSTRINGS = {"errors.py"}


def imported(path: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_after(imports: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after these imports."""
    code = f"import sys; sys.path.insert(0, {str(SRC)!r})\n{imports}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_public_modules_say_what_they_are_in_one_to_six_lines() -> None:
    wrong = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        lines = len(docstring.splitlines())
        needed = docstring or (path.read_text().strip() and not path.name.startswith("_"))
        if needed and not 1 <= lines <= 6 and path.name not in LONG_DOCSTRINGS:
            wrong[str(path.relative_to(ROOT))] = lines
    assert wrong == {}


def test_heavy_libraries_are_imported_by_local_members_only() -> None:
    outside = {
        str(path.relative_to(PACKAGE)): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if (names := sorted({name.partition(".")[0] for name in imported(path)} & HEAVY))
        and not (path.parent.name in {"engines", "trainers"} and path.name.startswith(("local", "losses")))
    }
    assert outside == {}


def test_no_module_uses_mocks() -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    assert [str(path) for path in files if any(name.startswith("unittest.mock") for name in imported(path))] == []


def test_loading_the_config_and_the_command_line_stays_light() -> None:
    loaded = modules_after("import openforgerl.cli.config, openforgerl.cli.main")
    assert "openforgerl.cli.main" in loaded
    assert loaded & NOT_FOR_CONFIG == set()


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = {name for name in modules_after("import openforgerl") if name.startswith("openforgerl")}
    assert loaded == {"openforgerl"}


def test_the_set_up_runs_before_anything_is_installed() -> None:
    """Its modules need the standard library only: `-S` hides every installed package."""
    code = f"import sys; sys.path.insert(0, {str(SRC)!r}); import openforgerl.harnesses.installing"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
