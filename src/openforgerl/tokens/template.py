"""A chat template bound to a tokenizer: messages to ids, in pieces or whole, with the same result.

Where it makes messages depend on later ones, a conversation is only rendered whole.

The contract that makes this true is checked when a template is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from openforgerl.errors import AssemblyError, ConfigError
from openforgerl.records import Message, ToolSpec
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.contract import SHIPPED, check_images, learn
from openforgerl.tokens.ids import Ids, as_ids
from openforgerl.tokens.pieces import Region, frame, piece, regions, units
from openforgerl.tokens.rendering import Marked, encode_marked
from openforgerl.tokens.vision import Vision

DEFAULT = SHIPPED
DEFAULT_WITH_IMAGES = DEFAULT.with_name("hermes_chatml_images.jinja")


class Template:
    """Immutable; shared by all sessions."""

    def __init__(self, codec: Codec, source: str, name: str, vision: Vision | None = None) -> None:
        """Raises ConfigError, which names the template and the case in which it breaks the contract."""
        self.name = name
        self.template_hash = hashlib.sha256(source.encode()).hexdigest()[:32]
        self._renderer, self._shape = learn(codec, source, name)
        self.vision = None if self._shape.depends else vision
        """None where no images are read: placeholders are put into pieces, and this template may be no sum of them."""
        if self.vision is not None:
            self._renderer.reads_images = True
            check_images(self._renderer, name, self.vision.pad_id)
        self.header_ids = as_ids(encode_marked(codec, Marked(text=self._shape.header)))
        """Opens an assistant turn; equal to the generation prompt."""
        self.closing_ids = as_ids(encode_marked(codec, Marked(text=self._shape.closing)))
        """Closes an assistant turn: the end-of-turn id, then what the template puts behind it."""
        self.codec = codec.with_stop_id(int(self.closing_ids[0]))
        """Its stop ids include the end of turn of this template."""
        self.header = self._shape.header
        self.depends = self._shape.depends
        """Whether what is printed of a message depends on later ones."""
        self.drops_text_of_calls = self._shape.drops_text_of_calls
        self.refuses = self._shape.refuses
        """Kinds of conversations that it renders by an error; a request of that kind is answered by one."""
        self.family = self._shape.family
        """How its model writes calls."""
        self.keeps_reasoning = self._shape.keeps_reasoning
        """Whether the reasoning of past turns is printed."""

    @classmethod
    def load(cls, codec: Codec, path: Path | None = None, vision: Vision | None = None) -> Template:
        """The template of a file, of a tokenizer_config.json too; by default the one that ships with us.

        Raises ConfigError.
        """
        path = path or (DEFAULT if vision is None else DEFAULT_WITH_IMAGES)
        try:
            source = path.read_text(encoding="utf-8")
            if path.suffix == ".json":
                source = _inline(source)
        except (OSError, ValueError) as error:
            raise ConfigError(f"chat template {path}: {error}") from error
        return cls(codec, source, path.name, vision)

    def units(self, messages: Sequence[Message]) -> list[tuple[Message, ...]]:
        """The messages cut into what is rendered apart from the rest."""
        return units(messages, merge_tool_results=self._shape.merge_tool_results)

    def piece_ids(self, unit: Sequence[Message], *, first: bool, tools: Sequence[ToolSpec]) -> Ids:
        """Ids of one unit, encoded anew; an image is one placeholder. Raises AssemblyError."""
        try:
            marked = piece(self._renderer, unit, first=first, tools=tools)
        except ValueError as error:
            raise AssemblyError(f"chat template {self.name}: {error}") from error
        return as_ids(encode_marked(self.codec, marked))

    def opening_ids(self, *, first: bool, tools: Sequence[ToolSpec]) -> Ids:
        """What stands before the body of an assistant turn."""
        if not first:
            return self.header_ids
        opening, _ = frame(self._renderer, first=True, tools=tools)
        return as_ids(encode_marked(self.codec, Marked(text=opening)))

    def whole(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Marked:
        """A prompt rendered at once. Raises AssemblyError."""
        return self._renderer.render(messages, tools, generation_prompt=True)

    def turns(self, whole: Marked, count: int) -> tuple[Region, ...]:
        """Where the `count` assistant turns of a prompt stand. Raises AssemblyError."""
        try:
            return regions(whole, self._shape.header, self._shape.closing, count)
        except ValueError as error:
            raise AssemblyError(f"chat template {self.name}: {error}") from error

    def marked_ids(self, marked: Marked) -> Ids:
        """Ids of a part of a rendering that begins and ends at control tokens."""
        return as_ids(encode_marked(self.codec, marked))

    def whole_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Ids:
        """A prompt rendered and encoded at once, no recorded ids in it: what a stock server sees."""
        return self.marked_ids(self.whole(messages, tools))

    def whole_text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """The text of `whole_ids`."""
        return self.whole(messages, tools).plain()


def own_template(folder: Path) -> Path | None:
    """The file of a model folder that holds the model's own template. Raises ConfigError where it is not readable."""
    file, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if file.is_file():
        return file
    try:
        parsed = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{settings}: {error}") from error
    return settings if isinstance(parsed, dict) and parsed.get("chat_template") else None


def _inline(settings: str) -> str:
    """The template that tokenizer settings hold. Raises ValueError."""
    parsed = json.loads(settings)
    source = parsed.get("chat_template") if isinstance(parsed, dict) else None
    if not isinstance(source, str):
        raise ValueError("it holds no text `chat_template`; name a file that does, or a .jinja file")
    return source
