"""The content of Responses items: what the model reads of each part, and what is refused by name.

Empty text is no text; neighbouring texts of one item are joined by a newline.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from openforgerl.dialects.content import Content
from openforgerl.dialects.fields import Fields, shown, wrong
from openforgerl.dialects.jsontext import Json, write_json
from openforgerl.errors import DialectError

_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "summary_text": "text", "refusal": "refusal"}
_REFUSED = {
    "input_file": "files are not read here; send the text as input_text",
    "input_audio": "this model hears nothing; send the transcript as input_text",
    "encrypted_content": "it was encrypted elsewhere; send the text as input_text",
}
_FURNITURE = {"type", "id", "status", "phase", "annotations", "logprobs", "created_by"}
"""Of answers that come back: it says nothing to the model."""
_CARRIERS = ("title", "url", "filename", "text", "code", "results", "outputs", "logs", "output", "result", "error")
"""Where items of server-side tools carry text, in the order in which it is read."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What one item leaves beside its message."""

    images: dict[str, bytes] = field(default_factory=dict)
    """Bytes by sha256."""
    ignored: set[str] = field(default_factory=set)

    def pass_over(self, fields: Fields, known: set[str]) -> None:
        """Note the keys that are not read."""
        place = "input" if fields.path.endswith("]") and fields.path.count("[") == 1 else "input.content"
        rest = fields.values.keys() - known - _FURNITURE
        self.ignored.update(f"{place}.{key}" for key in rest if fields.get(key) not in (None, [], {}))

    def content(self, fields: Fields, name: str) -> Content:
        """A string, or a list of parts; what a tool gives may be an object."""
        value, content = fields.get(name), Content(self.images)
        if isinstance(value, list):
            for path, part in fields.items(name):
                self._add(content, path, part)
        elif isinstance(value, dict):
            content.add_text(write_json(value))
        elif value is not None and not isinstance(value, str):
            raise wrong(fields.at(name), "a string or a list of parts", value)
        elif value:
            content.add_text(value)
        return content

    def _add(self, content: Content, path: str, value: Json) -> None:
        part = Fields({"type": "text", "text": value}, path) if isinstance(value, str) else Fields.of(value, path)
        kind = part.text("type") or ""
        if kind == "input_image":
            add_image(content, part)
            self.pass_over(part, {"image_url"})
        elif kind in _TEXTS:
            if text := part.text(_TEXTS[kind]):
                content.add_text(text)
            self.pass_over(part, {_TEXTS[kind]})
        else:
            why = _REFUSED.get(kind, 'send parts of type "input_text" or "input_image"')
            raise refused(part.at("type"), part.get("type"), why)


def add_image(content: Content, part: Fields) -> None:
    """The image itself, in a data URL."""
    url = part.get("image_url")
    if isinstance(url, dict):
        url = url.get("url")
    if not url and part.get("file_id"):
        raise refused(part.at("file_id"), part.get("file_id"), "no files are kept here; send image_url as a data URL")
    if not isinstance(url, str) or not url:
        raise wrong(part.at("image_url"), "the image as a data URL", url)
    content.add_image_url(url, part.at("image_url"))


def refused(path: str, value: Json, why: str) -> DialectError:
    return DialectError(f"{path}: {shown(value)} is refused: {why}", field=path, code="unsupported_content")


def carried_text(value: Json) -> list[str]:
    """What a reader would see of a server-side tool's item."""
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list):
        return [text for item in value for text in carried_text(item)]
    if isinstance(value, dict) and value.get("type") != "image":
        return [text for key in _CARRIERS for text in carried_text(value.get(key))]
    return []
