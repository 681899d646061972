"""The content blocks of the Messages format: what the model reads of each, what is refused by name.

Blocks of tools that ran on a server are text where they carry some, and are noted: they come from histories that began
elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from openforgerl.dialects.content import Content
from openforgerl.dialects.fields import Fields, shown, wrong
from openforgerl.dialects.jsontext import Json
from openforgerl.dialects.messages_tools import read_tool, told
from openforgerl.errors import DialectError

_KNOWN = {
    "text": {"text"},
    "image": {"source"},
    "document": {"source", "title", "context"},
    "search_result": {"source", "title", "content"},
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
    deferred: Mapping[str, str] = field(default_factory=dict)
    """Definitions of the tools that are told where a block refers to them."""
    references: set[str] = field(default_factory=set)
    """Names of tools that blocks refer to."""

    def content(self) -> Content:
        return Content(self.images)

    def read(self, fields: Fields, name: str) -> Content:
        """A string, or a list of blocks that a user or a tool may say."""
        content = self.content()
        for are_references, run in groupby(blocks_of(fields, name), _is_reference):
            if are_references:
                self.tell(content, [self._referred(block, "tool_name") for block in run])
                continue
            for block in run:
                self.add(content, block)
        return content

    def tell(self, content: Content, names: Sequence[str]) -> None:
        """Deferred tools with their definitions, others by name."""
        self.references.update(names)
        known = [self.deferred[name] for name in names if name in self.deferred]
        add_text(content, "\n".join(name for name in names if name not in self.deferred))
        add_text(content, told(known) if known else "")

    def add_tool(self, content: Content, block: Fields) -> None:
        """A tool that is offered from here on; noted where there is nothing to tell of it."""
        tool = Fields.of(block.get("tool"), block.at("tool"))
        definition = ""
        match kind_of(tool):
            case "tool_reference":
                name = self._referred(tool, "name")
                self.references.add(name)
                definition = self.deferred.get(name, "")
            case "tool_definition":
                spec = read_tool(Fields.of(tool.get("definition"), tool.at("definition"))).spec
                definition = spec.definition if spec else ""
        add_text(content, told([definition]) if definition else "")
        if not definition:
            self.ignored.add("messages.content.tool_addition")

    def _referred(self, fields: Fields, name: str) -> str:
        self.pass_over(fields, {name})
        found = fields.text(name)
        if not found:
            raise wrong(fields.at(name), "the name of a tool", found)
        return found

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


def _is_reference(block: Fields) -> bool:
    return block.get("type") == "tool_reference"


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
