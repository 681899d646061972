"""The `messages` of a Chat Completions request, as Messages.

null, "" and missing content are the same; text parts are joined by a newline, as vLLM does for string templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from openforgerl.dialects.content import Content
from openforgerl.dialects.fields import Fields, shown, wrong
from openforgerl.dialects.jsontext import Json, write_json
from openforgerl.errors import DialectError
from openforgerl.records import Message, Role, ToolCall

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_KNOWN = {"role", "content", "name"}
_KNOWN_OF = {
    Role.ASSISTANT: {"tool_calls", "reasoning_content", "reasoning", "function_call", "audio", "prefix", "partial"},
    Role.TOOL: {"tool_call_id"},
}
_REFUSED = {
    "function_call": "is deprecated; send `tool_calls` with an id each",
    "audio": "is refused: this model hears nothing; send the transcript as `content`",
    "prefix": "is refused: the policy starts each answer itself; end the messages with a user or tool message",
    "partial": "is refused: the policy starts each answer itself; end the messages with a user or tool message",
}


def read_messages(body: Fields, images: dict[str, bytes], ignored: set[str]) -> tuple[Message, ...]:
    """Raises DialectError; adds the bytes of images to `images` and the fields that it passed over to `ignored`."""
    items = body.each("messages", _item)
    if not items:
        raise wrong("messages", "a list of at least one message", body.get("messages"))
    for _, shown_images, passed_over in items:
        if shown_images or passed_over:
            images.update(shown_images)
            ignored.update(passed_over)
    return tuple([message for message, _, _ in items])


def _item(fields: Fields) -> tuple[Message, Mapping[str, bytes], Set[str]]:
    """A message, the bytes of its images, and what was passed over."""
    images: dict[str, bytes] = {}
    ignored: set[str] = set()
    return _message(fields, images, ignored), images, ignored


def _message(fields: Fields, images: dict[str, bytes], ignored: set[str]) -> Message:
    role = _role(fields)
    name = fields.text("name") or ""
    _pass_over(fields, _KNOWN | _KNOWN_OF.get(role, set()), ignored)
    content = _content(fields, images, ignored)
    text, shown_images = content.text, tuple(content.images)
    if shown_images and role not in (Role.USER, Role.TOOL):
        raise DialectError(f"{fields.at('content')}: a {role} message holds no images", field=fields.at("content"))
    if role is Role.TOOL:
        call_id = _tool_call_id(fields)
        return Message(role=role, text=text, images=shown_images, name=name, tool_call_id=call_id)
    if role is not Role.ASSISTANT:
        return Message(role=role, text=text, images=shown_images, name=name)
    for key, why in _REFUSED.items():
        if fields.get(key):
            raise DialectError(f"{fields.at(key)} {why}", field=fields.at(key))
    reasoning = fields.text("reasoning_content") or fields.text("reasoning") or ""
    return Message(role=role, text=text, name=name, reasoning=reasoning, tool_calls=_tool_calls(fields))


def _role(fields: Fields) -> Role:
    value = fields.get("role")
    if value == "function":
        way_out = "is deprecated; answer a tool call with role 'tool' and `tool_call_id`"
        raise DialectError(f"{fields.at('role')}: 'function' {way_out}", field=fields.at("role"))
    if not isinstance(value, str) or value not in tuple(Role):
        raise wrong(fields.at("role"), f"one of {', '.join(Role)}", value)
    return Role(value)


def _content(fields: Fields, images: dict[str, bytes], ignored: set[str]) -> Content:
    value, content = fields.get("content"), Content(images)
    if isinstance(value, str):
        content.add_text(value)
    elif value is not None and not isinstance(value, list):
        raise wrong(fields.at("content"), "a string or a list of text and image parts", value)
    else:
        for path, part in fields.items("content"):
            _add_part(content, path, part, ignored)
    return content


def _add_part(content: Content, path: str, value: Json, ignored: set[str]) -> None:
    if isinstance(value, str):
        content.add_text(value)
        return
    part = Fields.of(value, path)
    kind = part.get("type")
    if kind == "image_url":
        _pass_over(part, {"type", "image_url"}, ignored)
        content.add_image_url(_image_url(part), part.at("image_url"))
        return
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        why = f'{part.at("type")}: {shown(kind)} is refused; send parts of type "text" or "image_url"'
        raise DialectError(why, field=path, code="unsupported_content")
    _pass_over(part, {"type", _TEXT_PARTS[kind]}, ignored)
    if (text := part.text(_TEXT_PARTS[kind])) is not None:
        content.add_text(text)


def _image_url(part: Fields) -> str:
    value = part.get("image_url")
    url = value if isinstance(value, str) else Fields.of(value, part.at("image_url")).text("url")
    if not url:
        raise wrong(part.at("image_url.url"), "the image as a data URL", None)
    return url


def _tool_call_id(fields: Fields) -> str:
    call_id = fields.text("tool_call_id")
    if not call_id:
        raise wrong(fields.at("tool_call_id"), "the id of the tool call that it answers", fields.get("tool_call_id"))
    return call_id


def _tool_calls(fields: Fields) -> tuple[ToolCall, ...]:
    return tuple(_tool_call(call) for call in fields.objects("tool_calls"))


def _tool_call(call: Fields) -> ToolCall:
    if call.get("type") not in (None, "function"):
        raise wrong(call.at("type"), '"function"', call.get("type"))
    function = Fields.of(call.get("function"), call.at("function"))
    name = function.text("name")
    if not name:
        raise wrong(function.at("name"), "the name of a function", function.get("name"))
    return ToolCall(id=call.text("id") or "", name=name, arguments=_arguments(function))


def _arguments(function: Fields) -> str:
    value = function.get("arguments")
    return write_json(value) if isinstance(value, dict) else function.text("arguments") or ""


def _pass_over(fields: Fields, known: set[str], ignored: set[str]) -> None:
    place = "messages.content" if ".content[" in fields.path else "messages"
    ignored.update(f"{place}.{key}" for key in fields.values.keys() - known if fields.get(key) is not None)
