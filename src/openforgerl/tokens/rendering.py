"""A chat template as a function from messages to text, rendered as Hugging Face and the stock servers render it.

Control-token text that stands in a message stays plain: it is broken by a sentinel before rendering, and the rendered
text is cut at the control tokens of the template alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from openforgerl.errors import AssemblyError, ConfigError
from openforgerl.records import Message, Role, ToolSpec
from openforgerl.tokens.codec import Codec

_SENTINELS = range(0x100000, 0x100000 + 0xFFFE)
"""Private-use characters; the first that occurs in no input is taken."""

Value = str | list["Value"] | dict[str, "Value"] | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """Rendered text in which `sentinel` breaks control-token text that came from a message."""

    text: str
    sentinel: str = ""

    def plain(self) -> str:
        return self.text.replace(self.sentinel, "") if self.sentinel else self.text

    def behind(self, start: Marked) -> Marked:
        """What stands behind `start`. Raises ValueError where it does not begin so."""
        if not self.text.startswith(start.text):
            raise ValueError("the text of earlier messages depends on later ones")
        return Marked(text=self.text[len(start.text) :], sentinel=self.sentinel)


def encode_marked(codec: Codec, marked: Marked) -> list[int]:
    """Ids of a rendering: its control tokens as such, the stretches between them as plain text."""
    ids: list[int] = []
    at = 0
    for found in codec.special_pattern.finditer(marked.text):
        ids += codec.encode(Marked(text=marked.text[at : found.start()], sentinel=marked.sentinel).plain())
        ids.append(codec.specials[found.group()])
        at = found.end()
    ids += codec.encode(Marked(text=marked.text[at:], sentinel=marked.sentinel).plain())
    return ids


class ChatRenderer:
    """One compiled template."""

    def __init__(
        self, codec: Codec, source: str, name: str, *, arguments_as_text: bool = True, developer: str = "developer"
    ) -> None:
        """`developer`: what developers are called. Raises ConfigError where `source` is no Jinja template."""
        self.codec = codec
        self.source = source
        self.name = name
        self.arguments_as_text = arguments_as_text
        self._developer = developer
        self.reads_images = False
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"chat template {name}, line {error.lineno}: {error.message}") from error

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation_prompt: bool = False
    ) -> Marked:
        """The text of a conversation. Raises AssemblyError where the template refuses it."""
        try:
            return self._render(messages, tools, generation_prompt)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise AssemblyError(f"chat template {self.name} cannot render these messages: {error}") from error

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation_prompt: bool) -> Marked:
        fields: list[Value] = [self._fields(message) for message in messages]
        specs: list[Value] = [_tool(tool) for tool in tools]
        sentinel = self._sentinel([*fields, *specs])
        text = self._template.render(
            messages=self._broken(fields, sentinel),
            tools=self._broken(specs, sentinel) or None,
            add_generation_prompt=generation_prompt,
            bos_token=self.codec.token_text(self.codec.bos_id),
            eos_token=self.codec.token_text(self.codec.stop_ids[0]),
        )
        return Marked(text=text, sentinel=sentinel)

    def _fields(self, message: Message) -> dict[str, Value]:
        """A message in the Hugging Face convention; a text is never null, so that no template prints None."""
        if message.images and not self.reads_images:
            raise AssemblyError(
                "this model, with its chat template, reads no images; send text only", code="unsupported_content"
            )
        content = _parts(message) if message.images else message.text
        role = self._developer if message.role is Role.DEVELOPER else message.role.value
        fields: dict[str, Value] = {"role": role, "content": content}
        if message.reasoning:
            fields["reasoning_content"] = message.reasoning
        if message.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": self._arguments(call.arguments)},
                }
                for call in message.tool_calls
            ]
        if message.role is Role.TOOL:
            fields["tool_call_id"] = message.tool_call_id
        if message.name:
            fields["name"] = message.name
        return fields

    def _arguments(self, arguments: str) -> Value:
        if self.arguments_as_text:
            return arguments
        try:
            parsed: Value = json.loads(arguments or "{}")
        except ValueError:
            return arguments
        return parsed

    def _sentinel(self, values: Sequence[Value]) -> str:
        """A character that breaks control-token text; "" where there is nothing to break."""
        texts = [text for value in values for text in _strings(value)]
        if not any(self.codec.special_pattern.search(text) for text in texts):
            return ""
        used = set().union(*texts)
        for number in _SENTINELS:
            if chr(number) not in used:
                return chr(number)
        raise AssemblyError("the messages use every private-use character of plane 16")

    def _broken(self, value: Value, sentinel: str) -> Value:
        if not sentinel:
            return value
        if isinstance(value, str):
            return self.codec.special_pattern.sub(lambda found: found[0][0] + sentinel + found[0][1:], value)
        if isinstance(value, list):
            return [self._broken(item, sentinel) for item in value]
        if isinstance(value, dict):
            return {str(self._broken(key, sentinel)): self._broken(item, sentinel) for key, item in value.items()}
        return value


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's: keys as they come, no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _parts(message: Message) -> list[Value]:
    """Texts and images in their order."""
    parts: list[Value] = []
    places = [image.at for image in message.images]
    for start, stop in zip([0, *places], [*places, None], strict=True):
        if text := message.text[start:stop]:
            parts.append({"type": "text", "text": text})
        if stop is not None:
            parts.append({"type": "image"})
    return parts


def _tool(tool: ToolSpec) -> dict[str, Value]:
    try:
        definition = json.loads(tool.definition)
    except ValueError as error:
        raise AssemblyError(f"the definition of tool {tool.name!r} is not JSON: {error}") from error
    return {"type": "function", "function": definition}


def _strings(value: Value) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *_strings(item))]
    return []
