"""vLLM, or several of it: started with `--logprobs-mode processed_logprobs`, and with VLLM_SERVER_DEV_MODE=1 for
weight updates."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from openforgerl.engines.limits import refusal
from openforgerl.engines.remote import RemoteEngine
from openforgerl.engines.replicas import Replica
from openforgerl.engines.vllm_wire import VllmWire
from openforgerl.engines.wire import field_of
from openforgerl.errors import EngineError


class VllmEngine(RemoteEngine):
    """Engine over vLLM's HTTP API."""

    wire = VllmWire()

    async def _check_update(self, replica: Replica, folder: Path) -> None:
        """On a CPU vLLM (0.32) packs the output layer, and a reload renews the packed copy only where it has weights of
        its own: a model with tied embeddings would go on with the old one."""
        if _is_tied(folder) and await self._is_on_cpu(replica):
            raise refusal(
                f"{folder} ties its embeddings, and vLLM on a CPU would keep the old output layer: "
                "write it with tie_word_embeddings = false and a lm_head.weight"
            )

    async def _is_on_cpu(self, replica: Replica) -> bool:
        info: object = None
        with suppress(EngineError, ValueError):
            info = json.loads(await self._replicas.ask(replica, "GET", "/server_info?config_format=json"))
        config = field_of(info, "vllm_config")
        return field_of(field_of(config, "device_config"), "device") == "cpu"


def _is_tied(folder: Path) -> bool:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return field_of(config, "tie_word_embeddings") is True
