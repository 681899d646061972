"""Append-only sessions: what was recorded, as deltas and content-addressed messages."""

from openforgerl.store.sqlite import Store

__all__ = ["Store"]
