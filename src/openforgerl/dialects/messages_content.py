"""The content blocks of the Messages format: what the model reads of each, what is refused by name.

Blocks of tools that ran on a server are text where they carry some, and are noted: they come from histories that began
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from openforgerl.dialects.content import Content
from openforgerl.dialects.fields import Fields, shown, wrong
from openforgerl.dialects.jsontext import Json
from openforgerl.errors import DialectError

_KNOWN = {
    "text": {"text"},
    "image": {"source"},
    "document": {"source", "title", "context"},
    "search_result": {"source", "title", "content"},
    "tool_reference": {"tool_name"},
}
_SERVER_SIDE = ("server_tool_use", "mcp_tool_use", "mcp_tool_listing", "fallback", "compaction")
_CARRIERS = ("title", "url", "source", "text", "data", "content", "stdout", "stderr")
"""Where blocks of server-side tools carry text, in the order in which it is read."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the blocks of one request leave beside the messages."""

    images: dict[str, bytes]
    """Bytes by sha256."""
    ignored: set[str]

    def content(self) -> Content:
        return Content(self.images)

    def read(self, fields: Fields, name: str) -> Content:
        """A string, or a list of blocks that a user or a tool may say."""
        content = self.content()
        for block in blocks_of(fields, name):
            self.add(content, block)
        return content

    def add(self, content: Content, block: Fields) -> None:
        kind = kind_of(block)
        match kind:
            case "text":
                add_text(content, block.text("text"))
            case "image":
                _add_image(content, block)
            case "document":
                self._add_document(content, block)
            case "search_result":
                for text in (block.text("title"), block.text("source")):
                    add_text(content, text)
                self._add_inner(content, block, "content")
            case "tool_reference":
                add_text(content, block.text("tool_name"))
            case _ if is_server_side(kind):
                self.add_server_side(content, block)
                return
            case _:
                raise refused_block(block)
        self.pass_over(block, _KNOWN[kind])

    def add_server_side(self, content: Content, block: Fields) -> None:
        self.ignored.add(f"messages.content.{kind_of(block)}")
        add_text(content, "\n".join(carried_text(dict(block.values))))

    def pass_over(self, fields: Fields, known: set[str]) -> None:
        """Note the keys that are not read."""
        place = "messages.content" if ".content[" in fields.path else fields.path.partition("[")[0]
        rest = fields.values.keys() - known - {"type"}
        self.ignored.update(f"{place}.{key}" for key in rest if fields.get(key) not in (None, [], {}))

    def _add_document(self, content: Content, block: Fields) -> None:
        source = Fields.of(block.get("source"), block.at("source"))
        kind = source.text("type")
        if kind not in ("text", "content"):
            way_out = 'PDFs and files are not read here; send its text in a source of type "text"'
            raise _refused(source.at("type"), kind, way_out)
        for text in (block.text("title"), block.text("context")):
            add_text(content, text)
        if kind == "text":
            add_text(content, source.text("data"))
        else:
            self._add_inner(content, source, "content")

    def _add_inner(self, content: Content, fields: Fields, name: str) -> None:
        """Texts and images within a block."""
        for block in blocks_of(fields, name):
            if block.get("type") not in ("text", "image"):
                raise refused_block(block)
            self.add(content, block)


def blocks_of(fields: Fields, name: str) -> list[Fields]:
    """A string is one block of text; missing content is none."""
    value = fields.get(name)
    if isinstance(value, str):
        return [Fields({"type": "text", "text": value}, fields.at(name))]
    if value is not None and not isinstance(value, list):
        raise wrong(fields.at(name), "a string or a list of content blocks", value)
    return list(fields.objects(name))


def add_text(content: Content, text: str | None) -> None:
    """Empty text is no text."""
    if text:
        content.add_text(text)


def kind_of(block: Fields) -> str:
    kind = block.text("type")
    if not kind:
        raise wrong(block.at("type"), 'the kind of the block, "text" for instance', block.get("type"))
    return kind


def is_server_side(kind: str) -> bool:
    return kind in _SERVER_SIDE or kind.endswith("_tool_result")


def refused_block(block: Fields) -> DialectError:
    return _refused(block.at("type"), block.get("type"), "send text, or an image where a user or a tool speaks")


def carried_text(value: Json) -> list[str]:
    """What a reader would see of a server-side tool's block; encrypted and binary parts are none of it."""
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list):
        return [text for item in value for text in carried_text(item)]
    if isinstance(value, dict) and value.get("type") != "base64":
        return [text for key in _CARRIERS for text in carried_text(value.get(key))]
    return []


def _add_image(content: Content, block: Fields) -> None:
    source = Fields.of(block.get("source"), block.at("source"))
    kind = source.text("type")
    if kind != "base64":
        way_out = 'no address is fetched and no file is kept here; send the image in a source of type "base64"'
        raise _refused(source.at("type"), kind, way_out)
    content.add_image(source.text("data") or "", source.text("media_type") or "", source.path)


def _refused(path: str, kind: Json, why: str) -> DialectError:
    return DialectError(f"{path}: {shown(kind)} is refused: {why}", field=path, code="unsupported_content")
