"""vLLM, or several of it: started with `--logprobs-mode processed_logprobs`, and with VLLM_SERVER_DEV_MODE=1 for
weight updates."""

from __future__ import annotations

from openforgerl.engines.remote import RemoteEngine
from openforgerl.engines.vllm_wire import VllmWire


class VllmEngine(RemoteEngine):
    """Engine over vLLM's HTTP API."""

    wire = VllmWire()
