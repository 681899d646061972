"""Recorded calls for tests: with every field said, and whole conversations put together as a proxy would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openforgerl.records import (
    Completion,
    Delivered,
    Finish,
    HarnessCall,
    Message,
    MessagesDelta,
    ModelRequest,
    PromptDelta,
    RecordedCall,
    Role,
    Sampling,
    ToolCall,
    ToolSpec,
    VersionRun,
)

BASH = ToolSpec(name="bash", definition='{"name": "bash"}')


def user(text: str) -> Message:
    return Message(role=Role.USER, text=text)


def system(text: str) -> Message:
    return Message(role=Role.SYSTEM, text=text)


def assistant(text: str = "", *calls: tuple[str, str, str]) -> Message:
    """`calls`: (id, name, arguments)."""
    tool_calls = tuple(ToolCall(id=id_, name=name, arguments=arguments) for id_, name, arguments in calls)
    return Message(role=Role.ASSISTANT, text=text, tool_calls=tool_calls)


def result(call_id: str, text: str) -> Message:
    return Message(role=Role.TOOL, text=text, tool_call_id=call_id)


def recorded(
    index: int,
    prompt: PromptDelta | Sequence[int],
    sampled_ids: Sequence[int] = (7, 8),
    **changed: Any,
) -> RecordedCall:
    """Call "c<index>" of session "s1", complete, sampled at temperature 1 from policy version 3."""
    if not isinstance(prompt, PromptDelta):
        prompt = PromptDelta(parent=None, cut=0, new_ids=tuple(prompt))
    count = len(sampled_ids)
    fields: dict[str, Any] = {
        "call_id": f"c{index}",
        "session_id": "s1",
        "index": index,
        "dialect": "chat",
        "prompt": prompt,
        "messages": MessagesDelta(parent=None, cut=0, new=(user(f"question {index}"),)),
        "tools": (),
        "sampled_ids": tuple(sampled_ids),
        "logprobs": tuple(-(index + 1) / (place + 2) for place in range(count)),
        "logprob_kind": "sampled",
        "spans": (),
        "answer": assistant(f"answer {index}"),
        "finish": Finish.STOP,
        "completion": Completion.COMPLETE,
        "delivered": Delivered(state="unknown"),
        "versions": (VersionRun(policy_version=3, count=count),) if count else (),
        "sampling_asked": Sampling(),
        "sampling_used": Sampling(temperature=1.0),
        "model_asked": "policy",
        "digest": f"digest-{index}",
        "template_hash": "template",
        "tokenizer_hash": "tokenizer",
        "started_at": 1.0,
        "ended_at": 2.0,
    }
    return RecordedCall(**{**fields, **changed})


def intent(call_id: str, session_id: str = "s1") -> HarnessCall:
    return HarnessCall(
        call_id=call_id,
        session_id=session_id,
        dialect="chat",
        request=ModelRequest(messages=(user("question"),)),
        received_at=1.0,
        digest="digest",
    )


class Conversation:
    """A session's calls from its message lists, with a toy template: one id for a tool list, two for a message.

    An assistant message that a call answered is spelled with its sampled ids, so the trie is that of the messages.
    """

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        self._ids: dict[object, int] = {}
        self._spelled: dict[Message, tuple[int, ...]] = {}

    def ask(
        self,
        messages: Sequence[Message],
        answer: Message,
        *,
        tools: tuple[ToolSpec, ...] = (),
        labels: Mapping[str, str] | None = None,
        **changed: Any,
    ) -> str:
        """The call's id."""
        index = len(self.calls)
        prompt = (self._id(tools), *(part for message in messages for part in self._spell(message)))
        sampled = (self._id(("sampled", index)), self._id(answer), 1)
        self._spelled[answer] = sampled
        delta = MessagesDelta(parent=None, cut=0, new=tuple(messages))
        changed = {"messages": delta, "tools": tools, "answer": answer, "labels": labels or {}, **changed}
        self.calls.append(recorded(index, prompt, sampled, **changed))
        return f"c{index}"

    def _spell(self, message: Message) -> tuple[int, ...]:
        return self._spelled.get(message, (self._id(message), 2))

    def _id(self, thing: object) -> int:
        return self._ids.setdefault(thing, 10 + len(self._ids))
