"""SGLang, or several of it. Its log-probs follow the temperature unless SGLANG_RETURN_ORIGINAL_LOGPROB is set."""

from __future__ import annotations

from openforgerl.engines.remote import RemoteEngine
from openforgerl.engines.sglang_wire import SglangWire


class SglangEngine(RemoteEngine):
    """Engine over SGLang's HTTP API."""

    wire = SglangWire()
