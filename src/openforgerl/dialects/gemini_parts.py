"""The parts of the Gemini format: what the model reads of each, what is refused by name.

Every object may be spelled in camelCase or in snake_case: `Spelled` reads both, one level deep.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from openforgerl.dialects.content import Content
from openforgerl.dialects.fields import Fields, shown, wrong
from openforgerl.dialects.jsontext import Json, write_json
from openforgerl.dialects.marks import signed_call
from openforgerl.dialects.turns import Piece, Stage
from openforgerl.errors import DialectError
from openforgerl.records import Message, Role, ToolCall

_KINDS = (
    "text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult",
    "toolCall", "toolResponse",
)  # fmt: skip
_BESIDE = {"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"}
_CARRIERS = {"executableCode": "code", "codeExecutionResult": "output"}
_SNAKE = re.compile(r"(?<=[a-z0-9])_([a-z])")


def camel(fields: Fields) -> Fields:
    """The object with its keys in camelCase."""
    if not any("_" in key for key in fields.values):
        return fields
    return Fields({camel_name(key): value for key, value in fields.values.items()}, fields.path)


def camel_name(key: str) -> str:
    return _SNAKE.sub(lambda found: found[1].upper(), key)


def listed(fields: Fields, name: str) -> Fields:
    """One object below `name` is a list of it, as in examples of the API."""
    value = fields.get(name)
    return Fields({**fields.values, name: [value]}, fields.path) if isinstance(value, dict) else fields


def child(fields: Fields, name: str) -> Fields:
    """The object below `name`, in camelCase; an empty one where there is none."""
    value = fields.get(name)
    return camel(Fields.of({} if value is None else value, fields.at(name)))


@dataclass(frozen=True, slots=True)
class Notes:
    """What the parts of a content leave beside its messages."""

    images: dict[str, bytes]
    """Bytes by sha256."""
    ignored: set[str]

    def pass_over(self, fields: Fields, known: set[str], place: str) -> None:
        self.ignored.update(f"{place}.{key}" for key in fields.values.keys() - known if fields.get(key) is not None)


def parts_of(fields: Fields) -> list[tuple[str, Fields]]:
    """(kind, part) of each part of a content; a part that says nothing is left out."""
    return [found for part in listed(fields, "parts").objects("parts") for found in _kind_of(camel(part))]


def _kind_of(part: Fields) -> list[tuple[str, Fields]]:
    """(kind, part); nothing where it says nothing."""
    kinds = _kinds(part)
    if len(kinds) > 1:
        raise DialectError(f"{part.path}: {' and '.join(kinds)} are in one part; send a part for each", field=part.path)
    unknown = part.values.keys() - set(_KINDS) - _BESIDE
    if not kinds and unknown:
        raise _refused(part.path, sorted(unknown)[0], "send text, inlineData, functionCall or functionResponse")
    return [(kinds[0] if kinds else "text", part)] if kinds or part.text("thoughtSignature") else []


def _kinds(part: Fields) -> list[str]:
    return [kind for kind in _KINDS if part.get(kind) is not None]


def said(fields: Fields, notes: Notes) -> list[Message]:
    """A content of the user: texts and images, split at the results of tools."""
    found: list[Message] = []
    content = Content(notes.images)
    for kind, part in parts_of(fields):
        notes.pass_over(part, {kind}, "contents.parts")
        match kind:
            case "text":
                if text := part.text("text"):
                    content.add_text(text)
            case "inlineData":
                _add_image(content, part)
            case "functionResponse":
                found += _user(content)
                content = Content(notes.images)
                found.append(_result(child(part, kind), notes))
            case _ if kind in _CARRIERS:
                notes.ignored.add(f"contents.parts.{kind}")
                content.add_text(child(part, kind).text(_CARRIERS[kind]) or "")
            case _:
                raise _refused(part.at(kind), kind, "a user sends text, inlineData and functionResponse")
    return found + _user(content) or [Message(role=Role.USER)]


def answered(fields: Fields, notes: Notes) -> list[Piece]:
    """A content of the model, as pieces of its turn."""
    return [piece for kind, part in parts_of(fields) for piece in _pieces(kind, part, notes)]


def plain_text(fields: Fields, name: str) -> str:
    """What holds text only: a string, a part, a content, or a list of these."""
    content = Content({})
    value = fields.get(name)
    for path, item in fields.items(name) if isinstance(value, list) else [(fields.at(name), value)]:
        if isinstance(item, str):
            content.add_text(item)
            continue
        given = camel(Fields.of({} if item is None else item, path))
        for kind, part in _kind_of(given) if _kinds(given) else parts_of(given):
            if kind != "text":
                raise _refused(part.at(kind), kind, "instructions are text")
            content.add_text(part.text("text") or "")
    return content.text


def _user(content: Content) -> list[Message]:
    if not content.text and not content.images:
        return []
    return [Message(role=Role.USER, text=content.text, images=tuple(content.images))]


def _pieces(kind: str, part: Fields, notes: Notes) -> list[Piece]:
    signature = part.text("thoughtSignature") or ""
    mark = signed_call(signature)
    if signature and not mark:
        notes.ignored.add("contents.parts.thoughtSignature")
    notes.pass_over(part, {kind, "thought", "thoughtSignature"}, "contents.parts")
    match kind:
        case "text":
            stage = Stage.REASONING if part.flag("thought") else Stage.TEXT
            text = part.text("text") or ""
            return [Piece(stage, text, mark=mark)] if text or mark else []
        case "functionCall":
            return [Piece(Stage.CALLS, call=_call(child(part, kind), notes), mark=mark)]
        case _ if kind in _CARRIERS or kind in ("toolCall", "toolResponse"):
            notes.ignored.add(f"contents.parts.{kind}")
            text = child(part, kind).text(_CARRIERS.get(kind, "")) or ""
            return [Piece(Stage.TEXT, text, mark=mark)] if text else []
    raise _refused(part.at(kind), kind, "the model says text and functionCall")


def _call(fields: Fields, notes: Notes) -> ToolCall:
    name = fields.text("name")
    if not name:
        raise wrong(fields.at("name"), "the name of the function", name)
    notes.pass_over(fields, {"id", "name", "args"}, "contents.parts.functionCall")
    given = fields.get("args")
    arguments = write_json(Fields.of({} if given is None else given, fields.at("args")).values)
    return ToolCall(id=fields.text("id") or "", name=name, arguments=arguments)


def _result(fields: Fields, notes: Notes) -> Message:
    """{"output": ...} and {"error": ...} are the result and the failure; any other object is the result itself."""
    name = fields.text("name")
    if not name and not fields.text("id"):
        raise wrong(fields.at("name"), "the name of the function that answers", name)
    notes.pass_over(fields, {"id", "name", "response", "parts"}, "contents.parts.functionResponse")
    given = fields.get("response")
    response = Fields.of({} if given is None else given, fields.at("response")).values
    content = Content(notes.images)
    content.add_text(_output(response))
    for part in map(camel, listed(fields, "parts").objects("parts")):
        _add_image(content, part)
    return Message(
        role=Role.TOOL,
        text=content.text,
        images=tuple(content.images),
        tool_call_id=fields.text("id") or "",
        is_error=response.keys() == {"error"},
        name=name or "",
    )


def _output(response: dict[str, Json]) -> str:
    if len(response) == 1 and response.keys() <= {"output", "error"}:
        (value,) = response.values()
        return value if isinstance(value, str) else write_json(value)
    return write_json(response)


def _add_image(content: Content, part: Fields) -> None:
    if part.get("inlineData") is None:
        kind = next(iter(part.values), "nothing")
        raise _refused(part.at(kind), kind, "no file is kept here; send the image itself as inlineData")
    data = child(part, "inlineData")
    # Base64 of both alphabets, with and without padding: what Google's own parser takes.
    encoded = (data.text("data") or "").translate(_STANDARD).rstrip("=")
    content.add_image(encoded + "=" * (-len(encoded) % 4), data.text("mimeType") or "", data.path)


_STANDARD = str.maketrans("-_", "+/")


def _refused(path: str, kind: str, why: str) -> DialectError:
    return DialectError(f"{path}: {shown(kind)} is refused: {why}", field=path, code="unsupported_content")
