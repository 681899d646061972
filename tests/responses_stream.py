"""A strict reader of the Responses stream: what a client may rely on, and what it makes of the events."""

from __future__ import annotations

import json
from typing import Any

TEXTS = {
    "message": ("output_text", "content_part", "content_index", "content", "output_text"),
    "reasoning": ("reasoning_text", "content_part", "content_index", "content", "reasoning_text"),
    "summary": ("reasoning_summary_text", "reasoning_summary_part", "summary_index", "summary", "summary_text"),
}
ARGUMENTS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}
TERMINAL = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}


class WrongStreamError(Exception):
    """The stream breaks a rule of the format."""


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """The data of each event, comments left out; the name beside it must be its type."""
    blocks = raw.decode().split("\n\n")
    assert blocks.pop() == "", "the stream ends in mid event"
    found = []
    for block in blocks:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        found.append(json.loads(data.removeprefix("data: ")))
        assert found[-1]["type"] == name.removeprefix("event: ")
    return found


def need(condition: bool, why: str) -> None:
    if not condition:
        raise WrongStreamError(why)


class StreamReader:
    """Takes event by event; raises WrongStreamError at the first that may not stand there."""

    def __init__(self) -> None:
        self.response: dict[str, Any] | None = None
        """The final one."""
        self.items: list[dict[str, Any]] = []
        """Those that are done."""
        self._id = ""
        self._next = 0
        self._progress = False
        self._item: dict[str, Any] | None = None
        self._part: str | None = None
        """Of the open item: how its part is called, while it is open."""
        self._text = ""
        self._said = False
        """The text or the arguments were told to be whole."""

    def take(self, event: dict[str, Any]) -> None:
        need(self.response is None, f"{event['type']} after the end")
        need(event["sequence_number"] == self._next, f"event {event['sequence_number']} is number {self._next}")
        self._next += 1
        kind = event["type"].removeprefix("response.")
        if kind == "created":
            need(not self._id, "a second response.created")
            self._id = event["response"]["id"]
            self._begun(event["response"])
            return
        need(bool(self._id), f"{kind} before response.created")
        if event["type"] in TERMINAL:
            self._end(event)
        elif kind == "in_progress":
            self._progress = True
            self._begun(event["response"])
        else:
            need(self._progress, f"{kind} before response.in_progress")
            self._within(kind, event)

    def _begun(self, response: dict[str, Any]) -> None:
        need(response["id"] == self._id, "another response")
        need(response["status"] == "in_progress", "a response that begins is not in progress")
        need(response["output"] == [] and response["usage"] is None, "a response begins with its end")

    def _end(self, event: dict[str, Any]) -> None:
        response = event["response"]
        need(response["id"] == self._id, "another response")
        need(response["status"] == TERMINAL[event["type"]], "the status is not that of the event")
        need(response["output"] == self.items, "the final output is not what was streamed")
        need((response["error"] is None) == (response["status"] != "failed"), "an error, or none, in the wrong place")
        need((response["usage"] is None) == (response["status"] == "failed"), "usage, or none, in the wrong place")
        cut = response["incomplete_details"] is not None
        need(cut == (response["status"] == "incomplete"), "details, or none, in the wrong place")
        need(self._item is None or response["status"] == "failed", "an item is open at the end")
        self.response = response

    def _within(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "output_item.added":
            self._added(event)
            return
        need(self._item is not None, f"{kind} while no item is open")
        item = self._item or {}
        need(event["output_index"] == len(self.items), f"{kind} of another item")
        if kind == "output_item.done":
            self._done(item, event)
            return
        need(event["item_id"] == item["id"], f"{kind} of another item")
        if item["type"] in ARGUMENTS:
            self._argue(item, kind, event)
        else:
            self._tell(item, kind, event)

    def _added(self, event: dict[str, Any]) -> None:
        item = event["item"]
        need(self._item is None, "an item is added while another one is open")
        need(event["output_index"] == len(self.items), "an item has a wrong number")
        need(item["id"] not in {done["id"] for done in self.items}, "two items have one id")
        need(item["status"] == "in_progress", "an item that is added is not in progress")
        places = ("content", "summary", *([ARGUMENTS[item["type"]][1]] if item["type"] in ARGUMENTS else []))
        need(not any(item.get(place) for place in places), "an item begins with content")
        self._item, self._part, self._text, self._said = item, None, "", False

    def _tell(self, item: dict[str, Any], kind: str, event: dict[str, Any]) -> None:
        form = "summary" if kind.startswith("reasoning_summary") else item["type"]
        need(form in TEXTS, f"{kind} in an item of type {item['type']}")
        text, part, index, place, type_ = TEXTS[form]
        need(event[index] == 0, f"{kind} of another part")
        if kind == f"{part}.added":
            need(self._part is None and not item[place], "a second part")
            need((event["part"]["type"], event["part"]["text"]) == (type_, ""), "a part begins with content")
            self._part = form
            return
        need(self._part == form, f"{kind} while no such part is open")
        if kind == f"{text}.delta":
            need(not self._said and bool(event["delta"]), "a delta behind the end, or one of nothing")
            self._text += event["delta"]
        elif kind == f"{text}.done":
            need(not self._said and event["text"] == self._text, "the text is not that of its deltas")
            self._said = True
        elif kind == f"{part}.done":
            need(self._said and event["part"]["text"] == self._text, "the part is not that of its deltas")
            need(event["part"]["type"] == type_, "the part changes its type")
            item[place] = [event["part"]]
            self._part = None
        else:
            raise WrongStreamError(f"{kind} in an item of type {item['type']}")

    def _argue(self, item: dict[str, Any], kind: str, event: dict[str, Any]) -> None:
        name, place = ARGUMENTS[item["type"]]
        need(not self._said, f"{kind} behind the end of the arguments")
        if kind == f"{name}.delta":
            need(bool(event["delta"]), "a delta of nothing")
            self._text += event["delta"]
        elif kind == f"{name}.done":
            need(event[place] == self._text, "the arguments are not those of their deltas")
            item[place] = self._text
            self._said = True
        else:
            raise WrongStreamError(f"{kind} in an item of type {item['type']}")

    def _done(self, item: dict[str, Any], event: dict[str, Any]) -> None:
        need(self._part is None, "an item is done while its part is open")
        need(self._said or item["type"] not in (*TEXTS, *ARGUMENTS), "an item is done that was not told to be whole")
        done = event["item"]
        need(done["status"] in ("completed", "incomplete"), "an item is done with the status of one that grows")
        need({**done, "status": "in_progress"} == item, "an item is not what its events said")
        self.items.append(done)
        self._item = None


def read_stream(raw: bytes) -> StreamReader:
    """The state behind the last event; the stream must have an end."""
    reader = StreamReader()
    for event in events_of(raw):
        reader.take(event)
    need(reader.response is not None, "the stream has no end")
    return reader
