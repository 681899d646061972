"""Counters as Prometheus text."""

from __future__ import annotations

from openforgerl.engines.base import Counted
from openforgerl.proxy.gateway import Gateway

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus_text(gateway: Gateway) -> str:
    gauges = {
        "sessions_open": gateway.sessions_open,
        "calls_in_flight": gateway.calls_in_flight,
        "policy_version": gateway.engine.policy_version,
    }
    counters = {f"{name}_total": number for name, number in gateway.totals.items()}
    store = {f"store_{name}_total": number for name, number in gateway.store.counters.items()}
    engine = gateway.engine.counters if isinstance(gateway.engine, Counted) else {}
    store |= {f"engine_{name}_total": number for name, number in engine.items()}
    return "".join(
        f"# TYPE openforgerl_{name} {kind}\nopenforgerl_{name} {number}\n"
        for kind, family in (("gauge", gauges), ("counter", counters | store))
        for name, number in sorted(family.items())
    )
