"""One tiny model folder for the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_policy import write_tiny_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")
