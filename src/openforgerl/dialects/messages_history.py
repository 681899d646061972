"""The `messages` of the Messages format, as Messages.

A user message is split at its tool results, in the order as sent; an assistant message where its blocks go back in the
order reasoning, text, calls, so that one answer of ours comes back as the pieces of one turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openforgerl.dialects.content import Content
from openforgerl.dialects.fields import Fields, wrong
from openforgerl.dialects.jsontext import write_json
from openforgerl.dialects.marks import signed_call
from openforgerl.dialects.messages_content import Blocks, add_text, blocks_of, kind_of, refused_block
from openforgerl.dialects.turns import Piece, Stage, turns_of
from openforgerl.errors import DialectError
from openforgerl.records import Message, Role, ToolCall


@dataclass(frozen=True, slots=True)
class _Item:
    """One element of `messages`, read by itself."""

    role: str
    messages: tuple[Message, ...]
    blocks: Blocks
    fleeting: bool = False
    """Shown until the next user message only."""


def read_messages(body: Fields, blocks: Blocks, deferred: Mapping[str, str], *, prefill: bool = False) -> list[Message]:
    """Raises DialectError. `prefill`: the last message may be the assistant's; `deferred`: tools told on the way."""
    items = body.each("messages", _item)
    if not items:
        raise wrong("messages", "a list of at least one message", body.get("messages"))
    if items[-1].role == "assistant" and not prefill:
        path = f"messages[{len(items) - 1}]"
        why = "this model does not support assistant message prefill; the conversation must end with a user message"
        raise DialectError(f"{path}: {why}", field=path, code="unsupported_value")
    last_user = max((place for place, item in enumerate(items) if item.role == "user"), default=-1)
    found: list[Message] = []
    for place, item in enumerate(items):
        blocks.ignored.update(item.blocks.ignored)
        if item.fleeting and place < last_user:
            continue
        blocks.images.update(item.blocks.images)
        refers = not item.blocks.references.isdisjoint(deferred)
        found += _told(body, place, deferred) if refers else item.messages
    return found


def read_system(body: Fields) -> list[Message]:
    """One message of all blocks; none where there is no text."""
    content = Content({})
    for block in blocks_of(body, "system"):
        if kind_of(block) != "text":
            raise refused_block(block)
        add_text(content, block.text("text"))
    return [Message(role=Role.SYSTEM, text=content.text)] if content.text else []


def _item(fields: Fields) -> _Item:
    return _read(fields, Blocks({}, set()))


def _told(body: Fields, place: int, deferred: Mapping[str, str]) -> tuple[Message, ...]:
    """An element that refers to tools, with their definitions: it depends on more than itself."""
    path, value = body.items("messages")[place]
    return _read(Fields.of(value, path), Blocks({}, set(), deferred)).messages


def _read(fields: Fields, blocks: Blocks) -> _Item:
    role, fleeting = fields.get("role"), False
    if role == "user":
        messages = _user(fields, blocks)
    elif role == "assistant":
        messages = _assistant(fields, blocks)
    elif role == "system":
        messages, fleeting = _system(fields, blocks), _is_fleeting(fields)
    else:
        raise wrong(fields.at("role"), '"user", "assistant" or "system"', role)
    blocks.pass_over(fields, {"role", "content", "clear_at"} if role == "system" else {"role", "content"})
    return _Item(role=str(role), messages=tuple(messages), blocks=blocks, fleeting=fleeting)


def _system(fields: Fields, blocks: Blocks) -> list[Message]:
    """A message amid the conversation. It may offer further tools; a withdrawn one stays in the prompt, noted."""
    content = Content({})
    for block in blocks_of(fields, "content"):
        match kind_of(block):
            case "text":
                blocks.add(content, block)
            case "tool_addition":
                blocks.add_tool(content, block)
            case "tool_removal":
                blocks.ignored.add("messages.content.tool_removal")
            case _:
                raise refused_block(block)
    return [Message(role=Role.SYSTEM, text=content.text)] if content.text else []


def _is_fleeting(fields: Fields) -> bool:
    until = fields.text("clear_at") or "never"
    if until not in ("never", "next_user_message"):
        raise wrong(fields.at("clear_at"), '"never" or "next_user_message"', until)
    return until != "never"


def _user(fields: Fields, blocks: Blocks) -> list[Message]:
    found: list[Message] = []
    content = blocks.content()
    for block in blocks_of(fields, "content"):
        if kind_of(block) == "tool_result":
            found += _said(content)
            content = blocks.content()
            found.append(_tool_result(block, blocks))
        else:
            blocks.add(content, block)
    return found + _said(content) or [Message(role=Role.USER)]


def _said(content: Content) -> list[Message]:
    if not content.text and not content.images:
        return []
    return [Message(role=Role.USER, text=content.text, images=tuple(content.images))]


def _tool_result(block: Fields, blocks: Blocks) -> Message:
    blocks.pass_over(block, {"tool_use_id", "content", "is_error"})
    call_id = block.text("tool_use_id")
    if not call_id:
        raise wrong(block.at("tool_use_id"), "the id of the tool_use block that it answers", block.get("tool_use_id"))
    content = blocks.read(block, "content")
    return Message(
        role=Role.TOOL,
        text=content.text,
        images=tuple(content.images),
        tool_call_id=call_id,
        is_error=block.flag("is_error"),
    )


def _assistant(fields: Fields, blocks: Blocks) -> list[Message]:
    found: list[Piece] = []
    for block in blocks_of(fields, "content"):
        match kind_of(block):
            case "thinking" | "redacted_thinking":
                found += _reasoning(block, blocks)
            case "tool_use":
                blocks.pass_over(block, {"id", "name", "input"})
                found.append(Piece(Stage.CALLS, call=_tool_call(block)))
            case "text":
                blocks.pass_over(block, {"text"})
                found += _text(block.text("text"))
            case "image" | "document" | "tool_result":
                raise refused_block(block)
            case _:
                found += _foreign(block, blocks)
    return turns_of(found, between="\n")


def _text(text: str | None) -> list[Piece]:
    return [Piece(Stage.TEXT, text)] if text else []


def _reasoning(block: Fields, blocks: Blocks) -> list[Piece]:
    """Signatures and redacted data of ours become a mark; foreign ones are noted."""
    redacted = block.get("type") == "redacted_thinking"
    signature = block.text("data" if redacted else "signature") or ""
    text = "" if redacted else block.text("thinking") or ""
    mark = signed_call(signature)
    if signature and not mark:
        blocks.ignored.add("messages.content.redacted_thinking" if redacted else "messages.content.signature")
    blocks.pass_over(block, {"thinking", "signature", "data"})
    return [Piece(Stage.REASONING, text, mark=mark)] if text or mark else []


def _foreign(block: Fields, blocks: Blocks) -> list[Piece]:
    """A block that no answer of ours has: of a server-side tool, or newer than this dialect."""
    content = Content({})
    blocks.add_server_side(content, block)
    return _text(content.text)


def _tool_call(block: Fields) -> ToolCall:
    name, call_id = block.text("name"), block.text("id")
    for key, value in (("name", name), ("id", call_id)):
        if not value:
            raise wrong(block.at(key), f"the {key} of the tool call", block.get(key))
    given = block.get("input")
    arguments = write_json(Fields.of({} if given is None else given, block.at("input")).values)
    return ToolCall(id=call_id or "", name=name or "", arguments=arguments)
