"""Names in the config become classes: a member of ours, or `package.module:Class` of the user's own."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openforgerl.errors import ConfigError

HARNESSES = {
    "react": "openforgerl.harnesses.react:React",
    "pi": "openforgerl.harnesses.pi:Pi",
    "mini-swe-agent": "openforgerl.harnesses.mini_swe_agent:MiniSweAgent",
    "claude-code": "openforgerl.harnesses.claude_code:ClaudeCode",
    "codex": "openforgerl.harnesses.codex:Codex",
    "gemini-cli": "openforgerl.harnesses.gemini_cli:GeminiCli",
    "qwen-code": "openforgerl.harnesses.qwen_code:QwenCode",
    "opencode": "openforgerl.harnesses.opencode:OpenCode",
    "openclaw": "openforgerl.harnesses.openclaw:OpenClaw",
    "zeroclaw": "openforgerl.harnesses.zeroclaw:ZeroClaw",
}
GRADERS = {"tests": "openforgerl.graders.tests:TestsGrader"}
ENGINES = {
    "local": "openforgerl.engines.local:LocalEngine",
    "vllm": "openforgerl.engines.vllm:VllmEngine",
    "sglang": "openforgerl.engines.sglang:SglangEngine",
    "upstream": "openforgerl.engines.upstream:UpstreamEngine",
}


def member(field: str, name: str, ours: Mapping[str, str], folder: Path) -> Any:
    """The class that `field` (like "[harness] name") names; own modules are also looked for in `folder`.

    Raises ConfigError.
    """
    where = ours.get(name, name)
    module, colon, attribute = where.partition(":")
    if not (colon and module and attribute):
        close = difflib.get_close_matches(name, ours, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(
            f"{field} = {name!r} is unknown: {hint}there are {', '.join(ours)}, or package.module:Class of your own"
        )
    if name not in ours and str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{field} = {name!r}: {_missing(error, name in ours)}") from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{field} = {name!r}: {error}") from error


def _missing(error: ModuleNotFoundError, ours: bool) -> str:
    if ours and error.name and not error.name.startswith("openforgerl"):
        return f"{error.name} is not installed: pip install 'openforgerl[local]'"
    return f"there is no module {error.name}"
