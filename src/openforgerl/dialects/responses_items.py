"""The `input` of a Responses request, as Messages.

Consecutive items of the assistant are one message as long as they come in the order reasoning, text, calls, so that one
answer of ours comes back as the pieces of one turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from openforgerl.dialects.content import Content
from openforgerl.dialects.fields import Fields, wrong
from openforgerl.dialects.jsontext import write_json
from openforgerl.dialects.marks import signed_call
from openforgerl.dialects.responses_calls import READ_BACK, arguments_of, flat_name
from openforgerl.dialects.responses_content import Notes, add_image, carried_text, refused
from openforgerl.dialects.responses_tools import Entry, Tool, read_entry, told
from openforgerl.records import Message, Role, ToolCall

_ROLES = {role.value: role for role in Role if role is not Role.TOOL}
_SERVER_SIDE = {
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call",
    "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "program", "program_output",
}  # fmt: skip
"""Of tools that ran on a server, in histories that began elsewhere: text where they carry some, and noted."""
_BUILT_IN = {
    "call_id", "action", "actions", "operation", "arguments", "execution", "environment", "pending_safety_checks",
}  # fmt: skip
_REFUSED = {
    "item_reference": "this server keeps no items; send the item itself (in the harness: store = false)",
    "compaction": "it was encrypted elsewhere; send the summary as a message",
    "context_compaction": "it was encrypted elsewhere; send the summary as a message",
    "compaction_trigger": "histories are not summarized here; ask for a summary in a user message",
}


@dataclass(frozen=True, slots=True)
class Item:
    """One element of `input`, read by itself."""

    message: Message | None
    """None where there is nothing for the model."""
    notes: Notes
    entries: Sequence[Entry] = ()
    """Tools that are offered from here on."""


@dataclass(frozen=True, slots=True)
class Read:
    """A whole `input`."""

    messages: tuple[Message, ...]
    images: Mapping[str, bytes]
    tools: Sequence[Tool]
    """Told on the way."""


def read_input(body: Fields, ignored: set[str]) -> Read:
    """Raises DialectError; adds what was passed over to `ignored`."""
    value = body.get("input")
    if isinstance(value, str) and value:
        return Read((Message(role=Role.USER, text=value),), {}, ())
    items = [] if isinstance(value, str) else body.each("input", _item)
    if not items:
        raise wrong("input", "a string, or a list of at least one item: the whole conversation", value)
    images: dict[str, bytes] = {}
    for item in items:
        ignored.update(item.notes.ignored)
        images.update(item.notes.images)
    tools = [tool for item in items for entry in item.entries for tool in entry.tools]
    return Read(_turns([item.message for item in items if item.message is not None]), images, tools)


def _turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The assistant's pieces put together."""
    found: list[Message] = []
    turn: list[Message] = []
    for message in messages:
        if turn and (message.role is not Role.ASSISTANT or _begins_anew(turn, message)):
            found.append(_joined(turn))
            turn = []
        if message.role is Role.ASSISTANT:
            turn.append(message)
        else:
            found.append(message)
    return (*found, _joined(turn)) if turn else tuple(found)


def _begins_anew(turn: Sequence[Message], piece: Message) -> bool:
    last = turn[-1]
    if piece.tool_calls:
        return False
    if piece.reasoning or piece.reasoning_mark:
        marks = {each.reasoning_mark for each in (*turn, piece) if each.reasoning_mark}
        return not (last.reasoning or last.reasoning_mark) or len(marks) > 1
    return not (last.reasoning or last.reasoning_mark)


def _joined(turn: Sequence[Message]) -> Message:
    if len(turn) == 1:
        return turn[0]
    return replace(
        turn[0],
        text="".join([piece.text for piece in turn]),
        reasoning="".join([piece.reasoning for piece in turn]),
        reasoning_mark=next((piece.reasoning_mark for piece in turn if piece.reasoning_mark), ""),
        tool_calls=tuple([call for piece in turn for call in piece.tool_calls]),
    )


def _item(fields: Fields) -> Item:
    kind = fields.text("type") or "message"
    notes = Notes()
    if kind in _TOLD:
        return _told(fields, notes, kind)
    if kind in READ_BACK:
        return Item(_built_in_call(fields, notes, kind), notes)
    if kind in _SERVER_SIDE:
        notes.ignored.add(f"input.{kind}")
        texts = [] if kind.startswith(("mcp_list", "mcp_approval", "program")) else carried_text(dict(fields.values))
        return Item(Message(role=Role.ASSISTANT, text="\n".join(texts)) if texts else None, notes)
    if kind in _REFUSED or kind not in _READERS:
        why = _REFUSED.get(kind, "no such item is known here; leave it out, or send its text as a message")
        raise refused(fields.at("type"), kind, why)
    return Item(_READERS[kind](fields, notes), notes)


def _message(fields: Fields, notes: Notes) -> Message:
    role = fields.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong(fields.at("role"), f"one of {', '.join(_ROLES)}", role)
    content = notes.content(fields, "content")
    if content.images and role != "user":
        raise refused(fields.at("content"), "input_image", f"a message of role {role} holds no images")
    notes.pass_over(fields, {"role", "content"})
    return Message(role=_ROLES[role], text=content.text, images=tuple(content.images))


def _agent_message(fields: Fields, notes: Notes) -> Message:
    """What another agent of the harness says."""
    content = notes.content(fields, "content")
    notes.pass_over(fields, {"content"})
    return Message(role=Role.USER, text=content.text, images=tuple(content.images))


def _reasoning(fields: Fields, notes: Notes) -> Message | None:
    """Its text, or the summary that stands for it; encrypted content of ours is a mark, foreign one is noted."""
    texts = [_texts(fields, name) for name in ("content", "summary")]
    encrypted = fields.text("encrypted_content") or ""
    mark = signed_call(encrypted)
    if encrypted and not mark:
        notes.ignored.add("input.encrypted_content")
    notes.pass_over(fields, {"content", "summary", "encrypted_content"})
    text = texts[0] or texts[1]
    return Message(role=Role.ASSISTANT, reasoning=text, reasoning_mark=mark) if text or mark else None


def _texts(fields: Fields, name: str) -> str:
    if isinstance(value := fields.get(name), str):
        return value
    return "\n".join(text for part in fields.objects(name) if (text := part.text("text")))


def _function_call(fields: Fields, notes: Notes) -> Message:
    given = fields.get("arguments")
    arguments = write_json(given) if isinstance(given, dict) else fields.text("arguments") or ""
    notes.pass_over(fields, {"call_id", "name", "namespace", "arguments"})
    return _called(fields, _called_name(fields), arguments)


def _custom_call(fields: Fields, notes: Notes) -> Message:
    notes.pass_over(fields, {"call_id", "name", "namespace", "input"})
    return _called(fields, _called_name(fields), arguments_of(fields.text("input") or ""))


def _built_in_call(fields: Fields, notes: Notes, kind: str) -> Message:
    form = READ_BACK[kind]
    notes.pass_over(fields, _BUILT_IN)
    return _called(fields, form.name, write_json(form.read(dict(fields.values))))


def _called(fields: Fields, name: str, arguments: str) -> Message:
    call = ToolCall(id=_call_id(fields), name=name, arguments=arguments)
    return Message(role=Role.ASSISTANT, tool_calls=(call,))


def _called_name(fields: Fields) -> str:
    name = fields.text("name")
    if not name:
        raise wrong(fields.at("name"), "the name of the tool", fields.get("name"))
    return flat_name(fields.text("namespace") or "", name)


def _call_id(fields: Fields) -> str:
    """Some clients name the call by the item's own id."""
    call_id = fields.text("call_id") or fields.text("id")
    if not call_id:
        raise wrong(fields.at("call_id"), "the id of the tool call", fields.get("call_id"))
    return call_id


def _output(fields: Fields, notes: Notes) -> Message:
    notes.pass_over(fields, {"call_id", "output", "name", "namespace"})
    return _answered(fields, notes.content(fields, "output"))


def _shell_output(fields: Fields, notes: Notes) -> Message:
    """Each command's output as a terminal shows it, and how it ended."""
    notes.pass_over(fields, {"call_id", "output"})
    if not isinstance(fields.get("output"), list):
        return _answered(fields, notes.content(fields, "output"))
    lines: list[str] = []
    for part in fields.objects("output"):
        lines += [text for name in ("stdout", "stderr") if (text := part.text(name))]
        lines += _outcome(Fields.of(part.get("outcome") or {}, part.at("outcome")))
    content = Content(notes.images)
    content.add_text("\n".join(lines))
    return _answered(fields, content)


def _outcome(fields: Fields) -> list[str]:
    if fields.text("type") == "timeout":
        return ["[timed out]"]
    code = fields.integer("exit_code", -(2**31))
    return [] if code is None else [f"[exit code {code}]"]


def _patch_output(fields: Fields, notes: Notes) -> Message:
    status = fields.text("status") or ""
    notes.pass_over(fields, {"call_id", "output"})
    content = notes.content(fields, "output")
    if not content.text and status:
        content.add_text(status)
    return _answered(fields, content, is_error=status == "failed")


def _screenshot(fields: Fields, notes: Notes) -> Message:
    content, output = Content(notes.images), Fields.of(fields.get("output"), fields.at("output"))
    add_image(content, output)
    notes.pass_over(fields, {"call_id", "output"})
    return _answered(fields, content)


def _answered(fields: Fields, content: Content, *, is_error: bool = False) -> Message:
    return Message(
        role=Role.TOOL,
        text=content.text,
        images=tuple(content.images),
        tool_call_id=_call_id(fields),
        is_error=is_error,
    )


def _told(fields: Fields, notes: Notes, kind: str) -> Item:
    """Tools that a search found or the harness adds, told in their place."""
    entries = [read_entry(entry) for entry in fields.objects("tools")]
    for entry in entries:
        notes.ignored.update(entry.ignored)
    notes.pass_over(fields, {"call_id", "tools", "execution", "role"})
    tools = [tool for entry in entries for tool in entry.tools]
    text = told(tools)
    if kind == "additional_tools":
        return Item(Message(role=Role.DEVELOPER, text=text) if tools else None, notes, entries)
    return Item(Message(role=Role.TOOL, text=text, tool_call_id=_call_id(fields)), notes, entries)


def _update(fields: Fields, notes: Notes) -> None:
    """Of settings that are not those of the model; a format is a wish about one answer."""
    text = Fields.of(fields.get("text") or {}, fields.at("text"))
    wish = Fields.of(text.get("format") or {}, text.at("format"))
    if wish.text("type") not in (None, "text"):
        raise refused(wish.at("type"), wish.get("type"), "send text.format in the body of the request")
    notes.ignored.add("input.configuration_update")


_TOLD = ("tool_search_output", "additional_tools")
_READERS: Mapping[str, Callable[[Fields, Notes], Message | None]] = {
    "message": _message,
    "agent_message": _agent_message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "custom_tool_call": _custom_call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "local_shell_call_output": _output,
    "shell_call_output": _shell_output,
    "apply_patch_call_output": _patch_output,
    "computer_call_output": _screenshot,
    "configuration_update": _update,
}
