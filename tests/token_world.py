"""A session without a proxy: prompts are assembled, answers are sampled ids of the test's choice, then parsed and kept.

`modules` is the tokens package to test: the real one, or a mutant of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from openforgerl.records import (
    Delivered,
    EngineFinish,
    Message,
    ModelRequest,
    RecordedCall,
    Role,
    Sampling,
    ToolCall,
    ToolSpec,
    VersionRun,
)
from recorded_calls import recorded

FIXTURE = Path(__file__).parent / "fixtures" / "tiny-chatml"
TOKENS = "openforgerl.tokens"
BASH = ToolSpec(
    name="bash",
    definition='{"name": "bash", "description": "Run a command.", "parameters": {"type": "object"}}',
)
FULL = Delivered(state="full")


@cache
def template(modules: str = TOKENS, folder: Path = FIXTURE, file: Path | None = None) -> Any:
    codec = importlib.import_module(f"{modules}.codec").Codec.load(folder)
    return importlib.import_module(f"{modules}.template").Template.load(codec, file)


def call_text(arguments: str = '{"command": "ls"}', name: str = "bash") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def user(text: str) -> Message:
    return Message(role=Role.USER, text=text)


def system(text: str) -> Message:
    return Message(role=Role.SYSTEM, text=text)


def answer(text: str = "", *calls: ToolCall, reasoning: str = "") -> Message:
    return Message(role=Role.ASSISTANT, text=text, tool_calls=calls, reasoning=reasoning)


def call(call_id: str, arguments: str = '{"command": "ls"}', name: str = "bash") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result(call_id: str, text: str = "ok") -> Message:
    return Message(role=Role.TOOL, text=text, tool_call_id=call_id)


@dataclass
class TokenWorld:
    """One session."""

    modules: str = TOKENS
    options: dict[str, Any] = field(default_factory=dict)
    """Of the Assembler."""
    calls: list[RecordedCall] = field(default_factory=list)
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    """Whole prompts of the calls."""
    requests: list[ModelRequest] = field(default_factory=list)
    folder: Path = FIXTURE
    file: Path | None = None
    """Of the template; None: the shipped one."""

    def __post_init__(self) -> None:
        self.template = template(self.modules, self.folder, self.file)
        self.codec = self.template.codec
        self.assembler = self.fresh()
        self._minted = 0

    def fresh(self) -> Any:
        return importlib.import_module(f"{self.modules}.assembly").Assembler(self.template, **self.options)

    @property
    def end(self) -> int:
        return int(self.codec.stop_ids[0])

    def odd_ids(self, text: str, random: Random | None = None) -> tuple[int, ...]:
        """Ids of a text, cut at random places, or at each character: rarely the tokenizer's own way."""
        places = range(1, len(text)) if random is None else sorted(random.sample(range(len(text) + 1), len(text) // 3))
        bounds = [0, *places, len(text)]
        pieces = [text[start:stop] for start, stop in pairwise(bounds)]
        return tuple(token for piece in pieces for token in self.codec.encode(piece))

    def prompt(self, messages: Sequence[Message], tools: tuple[ToolSpec, ...] = (BASH,)) -> Any:
        return self.assembler.assemble(ModelRequest(messages=tuple(messages), tools=tools))

    def ask(
        self,
        messages: Sequence[Message],
        sampled: str | Sequence[int],
        *,
        tools: tuple[ToolSpec, ...] = (BASH,),
        stop: tuple[str, ...] = (),
        finish: EngineFinish | None = EngineFinish.STOP,
        delivered: Delivered = FULL,
        **changed: Any,
    ) -> Message:
        """One call: a text is sampled character by character, and ends its turn. The answer as it is sent."""
        ids = (*self.odd_ids(sampled), self.end) if isinstance(sampled, str) else tuple(sampled)
        request = ModelRequest(messages=tuple(messages), tools=tools, sampling=Sampling(stop=stop))
        prompt = self.assembler.assemble(request)
        parser = importlib.import_module(f"{self.modules}.parsing").AnswerParser(
            self.codec, tools=tools, stop=stop, mint=self.mint, family=self.template.family
        )
        parser.feed(ids)
        parsed = parser.finish(finish)
        self.requests.append(request)
        self.prompts.append(prompt.ids)
        self.calls.append(
            recorded(
                len(self.calls),
                prompt.delta,
                ids,
                **{
                    "messages": prompt.messages,
                    "tools": tools,
                    "spans": parsed.spans,
                    "answer": parsed.answer,
                    "finish": parsed.finish,
                    "delivered": delivered,
                    "versions": (VersionRun(policy_version=0, count=len(ids)),),
                    "stop_string": parser.stop_string,
                    "ends_turn": parsed.ends_turn,
                    "sampling_asked": request.sampling,
                    **changed,
                },
            )
        )
        self.assembler.remember(self.calls[-1])
        return parsed.answer

    def mint(self) -> str:
        self._minted += 1
        return f"call{self._minted:020d}"

    def learn(self, index: int, delivered: Delivered) -> None:
        """More became known of a call's delivery."""
        self.calls[index] = replace(self.calls[index], delivered=delivered)
        self.assembler.remember(self.calls[index])

    def ids(self, *parts: str | Sequence[int]) -> tuple[int, ...]:
        """Ids of parts: a text with control tokens as such, or ids."""
        found: list[int] = []
        rendering = importlib.import_module(f"{self.modules}.rendering")
        for part in parts:
            found += rendering.encode_marked(self.codec, rendering.Marked(text=part)) if isinstance(part, str) else part
        return tuple(found)
