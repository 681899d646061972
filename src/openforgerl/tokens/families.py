"""How a family of models writes an answer, as data: the marks around a call, and what reads the call between them.

Which family a model belongs to is found when its template is loaded: the first that reads back what the template
prints. Reasoning is `<think>` at the start of an answer, in every family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openforgerl.records import ToolSpec
from openforgerl.tokens.call_readers import CallReader, JsonReader, XmlReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    opening: str
    """Opens a call wherever it stands behind the reasoning."""
    separator: str = ""
    """What a template prints before a call: one of it there is markup, not text."""
    bare: str = ""
    """Not empty: a call without its opening may begin an answer, and follow another call behind this mark."""
    reader: Callable[[Sequence[ToolSpec], int], CallReader]
    """Made for the offered tools and the place behind the opening."""


HERMES = Family(
    name="hermes",
    opening="<tool_call>",
    separator="\n",
    reader=lambda tools, start: JsonReader(start, closing="</tool_call>"),
)
"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Qwen2.5, Qwen3, Hermes, SmolLM2."""

QWEN3_CODER = Family(
    name="qwen3_coder",
    opening="<tool_call>",
    separator="\n",
    reader=lambda tools, start: XmlReader(start, tools),
)
"""`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder."""

LLAMA3 = Family(
    name="llama3",
    opening="<|python_tag|>",
    bare=";",
    reader=lambda tools, start: JsonReader(start, keys=("parameters", "arguments")),
)
"""`{"name": ..., "parameters": {...}}`, several with `;` between them, with or without `<|python_tag|>`: Llama 3.1 and
later."""

FAMILIES: Sequence[Family] = (HERMES, QWEN3_CODER, LLAMA3)
