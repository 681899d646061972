"""Calls -> trie -> rows: pure functions over the committed calls of one session."""

from openforgerl.trajectories.checks import Accounting, accounting, check_rows
from openforgerl.trajectories.kinds import KINDS_VERSION, kinds
from openforgerl.trajectories.prompts import message_lists, parents, prompt_ids
from openforgerl.trajectories.rows import mask_reason, rows

__all__ = [
    "KINDS_VERSION",
    "Accounting",
    "accounting",
    "check_rows",
    "kinds",
    "mask_reason",
    "message_lists",
    "parents",
    "prompt_ids",
    "rows",
]
