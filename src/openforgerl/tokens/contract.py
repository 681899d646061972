"""The template contract, checked over probe conversations when a template is loaded.

Pieces equal the whole, as text and as ids; where a message depends on later ones, the assistant turns are found in the
whole. The generation prompt opens an assistant turn; the body of a turn is found, ends on token boundaries and reads
back as the message that it was rendered from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer

from openforgerl.errors import AssemblyError, ConfigError
from openforgerl.records import Message, Role, SpanKind
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.families import FAMILIES, Family
from openforgerl.tokens.markup import Part, scan
from openforgerl.tokens.pieces import BODY, frame, piece, regions, units
from openforgerl.tokens.probes import (
    AGAIN,
    ARGUMENTS,
    DEVELOPER,
    IMAGE_PROBES,
    PROBES,
    TOOLS,
    USER,
    Probe,
    calling,
    control_probe,
)
from openforgerl.tokens.rendering import ChatRenderer, Marked, encode_marked

SHIPPED = Path(__file__).parent / "templates" / "hermes_chatml.jinja"
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the check learned of a template."""

    header: str
    closing: str
    """Where messages depend on later ones: the end-of-turn token alone."""
    depends: bool
    family: Family
    keeps_reasoning: bool
    merge_tool_results: bool
    drops_text_of_calls: bool
    """Of an assistant message with calls only these are printed."""
    refuses: tuple[str, ...]
    """Cases for which the template raises an error."""


def learn(codec: Codec, source: str, name: str) -> tuple[ChatRenderer, Shape]:
    """Raises ConfigError: the template, the case, and what is wrong in it."""
    renderer = _checked(name, "tool arguments", partial(_renderer, codec, source, name))
    header, end = _checked(name, "an assistant turn", partial(_turn_marks, renderer))
    refuses = tuple(probe.case for probe in PROBES if probe.may_be_refused and _refuses(renderer, probe))
    merge = not _fits(renderer, merge=False) and _fits(renderer, merge=True)
    depends = not merge and not _fits(renderer, merge=False)
    closing = end if depends else frame(renderer, first=False)[1]
    _checked(name, "an assistant turn", partial(_check_frame, codec, header, closing))
    shape = Shape(
        header=header,
        closing=closing,
        depends=depends,
        family=_checked(name, "a call", partial(_family, renderer, header, end)),
        keeps_reasoning=_checked(name, "reasoning", partial(_keeps_reasoning, renderer)),
        merge_tool_results=merge,
        drops_text_of_calls=_drops_text_of_calls(renderer),
        refuses=refuses,
    )
    stock = Tokenizer.from_str(codec.tokenizer.to_str())
    stock.encode_special_tokens = False
    for probe in [each for each in PROBES if each.case not in refuses]:
        for check in (_check_cuts, _check_contents, _check_bodies):
            _checked(name, probe.case, partial(check, renderer, shape, probe))
        _checked(name, probe.case, partial(_check_stock, renderer, stock, probe))
    for control in sorted(codec.specials):
        probe = control_probe(control)
        _checked(name, probe.case, partial(_check_control_text, renderer, shape, probe))
    return renderer, shape


def check_images(renderer: ChatRenderer, name: str, pad_id: int) -> None:
    """Of a model that reads images: each is printed as one placeholder, in its place. Raises ConfigError."""
    _checked(name, "images", partial(_check_images, renderer, pad_id))


def _check_images(renderer: ChatRenderer, pad_id: int) -> None:
    for probe in IMAGE_PROBES:
        _check_pieces(renderer, probe, merge=False)
        ids = encode_marked(renderer.codec, renderer.render(probe.messages))
        if ids.count(pad_id) != sum(len(message.images) for message in probe.messages):
            pad = renderer.codec.token_text(pad_id)
            raise ValueError(f"an image part of a user message is not printed as one {pad!r}")


def _checked(name: str, case: str, check: Callable[[], Result]) -> Result:
    try:
        return check()
    except (AssemblyError, ValueError) as error:
        way_out = f"change it, or name another as [model] template ({SHIPPED} comes with openforgerl)"
        raise ConfigError(
            f"chat template {name} breaks the contract in the case {case!r}: {error}; {way_out}"
        ) from error


def _renderer(codec: Codec, source: str, name: str) -> ChatRenderer:
    """Arguments go in as text where the template prints a text as it is, else as an object.

    Developers are called so where the template knows them, else they are systems.
    """
    for as_text in (True, False):
        renderer = ChatRenderer(codec, source, name, arguments_as_text=as_text)
        printed = renderer.render((USER, calling("bash"))).plain()
        if (ARGUMENTS if as_text else "ls -la") in printed and json.dumps(ARGUMENTS) not in printed:
            break
    else:
        raise ValueError("the arguments of a call are not printed")
    if _knows_developers(renderer):
        return renderer
    return ChatRenderer(codec, source, name, arguments_as_text=as_text, developer=Role.SYSTEM.value)


def _knows_developers(renderer: ChatRenderer) -> bool:
    try:
        return DEVELOPER.text in renderer.render((DEVELOPER, USER)).plain()
    except AssemblyError:
        return False


def _turn_marks(renderer: ChatRenderer) -> tuple[str, str]:
    """The generation prompt, which opens an assistant turn, and the token that ends one."""
    header = renderer.render((USER,), generation_prompt=True).behind(renderer.render((USER,))).plain()
    turn = Message(role=Role.ASSISTANT, text=BODY)
    opening, found, behind = renderer.render((USER, turn, AGAIN)).plain().partition(BODY)
    if not found or BODY in behind:
        raise ValueError("the text of an assistant message is not printed once, as it is")
    if not header or header not in opening:
        raise ValueError(f"the generation prompt {header!r} is not the header of an assistant turn, {opening!r}")
    end = renderer.codec.special_pattern.match(behind)
    if end is None:
        raise ValueError(f"an assistant turn is closed by {behind[:20]!r}, which begins with no control token")
    return header, end.group()


def _check_frame(codec: Codec, header: str, closing: str) -> None:
    if codec.special_pattern.match(header) is None:
        raise ValueError(f"the generation prompt {header!r} begins with no control token")
    body = "Hello there."
    parts = encode_marked(codec, Marked(text=header)) + list(codec.encode(body))
    parts += encode_marked(codec, Marked(text=closing))
    if encode_marked(codec, Marked(text=header + body + closing)) != parts:
        raise ValueError("the body of an assistant turn does not begin and end on token boundaries")


def _keeps_reasoning(renderer: ChatRenderer) -> bool:
    turn = Message(role=Role.ASSISTANT, text="Hello", reasoning=BODY)
    return BODY in renderer.render((USER, turn)).plain()


def _family(renderer: ChatRenderer, header: str, end: str) -> Family:
    """The first that reads back a call that the template prints."""
    marked = renderer.render((USER, calling("bash")), TOOLS, generation_prompt=True)
    turn = regions(marked, header, end, 1)[0]
    body = marked.text[turn.body : turn.stop]
    for family in FAMILIES:
        parts = scan(body, tools=TOOLS, family=family)
        if [json.loads(part.arguments) for part in parts if part.kind is SpanKind.TOOL_CALL] == [json.loads(ARGUMENTS)]:
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise ValueError(f"a call is printed as {body!r}, which no family reads (known: {known}; see docs/families.md)")


def _refuses(renderer: ChatRenderer, probe: Probe) -> bool:
    try:
        renderer.render(probe.messages, probe.tools)
    except AssemblyError:
        return True
    return False


def _drops_text_of_calls(renderer: ChatRenderer) -> bool:
    return BODY not in renderer.render((USER, calling("bash", text=BODY))).plain()


def _printed_text(message: Message, shape: Shape) -> str:
    return "" if shape.drops_text_of_calls and message.tool_calls else message.text


def _fits(renderer: ChatRenderer, *, merge: bool) -> bool:
    try:
        for probe in PROBES:
            _check_pieces(renderer, probe, merge=merge)
    except (AssemblyError, ValueError):
        return False
    return True


def _check_cuts(renderer: ChatRenderer, shape: Shape, probe: Probe) -> None:
    if not shape.depends:
        _check_pieces(renderer, probe, merge=shape.merge_tool_results)
        return
    for count in [place + 1 for place, message in enumerate(probe.messages) if message.role in (Role.USER, Role.TOOL)]:
        turns = sum(message.role is Role.ASSISTANT for message in probe.messages[:count])
        whole = renderer.render(probe.messages[:count], probe.tools, generation_prompt=True)
        for turn in regions(whole, shape.header, shape.closing, turns):
            _check_boundary(renderer.codec, Marked(text=whole.text[: turn.start]), Marked(text=shape.header))


def _check_pieces(renderer: ChatRenderer, probe: Probe, *, merge: bool) -> None:
    """Of the conversation and of each of its beginnings, so that nothing depends on what comes later."""
    for count in range(1, len(probe.messages) + 1):
        cut = units(probe.messages[:count], merge_tool_results=merge)
        pieces = [piece(renderer, unit, first=not place, tools=probe.tools) for place, unit in enumerate(cut)]
        whole = renderer.render(probe.messages[:count], probe.tools)
        joined = "".join(marked.plain() for marked in pieces)
        if joined != whole.plain():
            raise ValueError(
                f"{count} messages rendered one by one give {_differing(joined, whole.plain())}: "
                "a message's text depends on other messages"
            )
        for left, right in pairwise(pieces):
            _check_boundary(renderer.codec, left, right)
        ids = [token_id for marked in pieces for token_id in encode_marked(renderer.codec, marked)]
        if ids != encode_marked(renderer.codec, whole):
            raise ValueError("the text of a message does not end on a token boundary")


def _check_boundary(codec: Codec, left: Marked, right: Marked) -> None:
    """Only a control token there keeps the ids of two messages apart whatever their texts are."""
    if not (codec.special_pattern.match(right.text) or left.text.endswith(tuple(codec.specials))):
        raise ValueError(f"no control token stands between {left.text[-20:]!r} and {right.text[:20]!r}")


def _check_contents(renderer: ChatRenderer, shape: Shape, probe: Probe) -> None:
    text = renderer.render(probe.messages, probe.tools).plain()
    wanted = [_printed_text(message, shape).strip() for message in probe.messages]
    wanted += [call.name for message in probe.messages for call in message.tool_calls]
    wanted += [json.loads(tool.definition)["description"] for tool in probe.tools]
    for part in wanted:
        if part not in text and json.dumps(part, ensure_ascii=False)[1:-1] not in text:
            raise ValueError(f"{part!r} is not printed")


def _check_bodies(renderer: ChatRenderer, shape: Shape, probe: Probe) -> None:
    said = [message for message in probe.messages if message.role is Role.ASSISTANT]
    for message, text in zip(said, _bodies(renderer, shape, probe, said), strict=True):
        if not _reads_as(scan(text, tools=TOOLS, family=shape.family), message, shape):
            raise ValueError(f"the body {text!r} does not read back as its message")


def _bodies(renderer: ChatRenderer, shape: Shape, probe: Probe, said: Sequence[Message]) -> list[str]:
    if shape.depends:
        whole = renderer.render(probe.messages, probe.tools, generation_prompt=True)
        turns = regions(whole, shape.header, shape.closing, len(said))
        return [Marked(text=whole.text[turn.body : turn.stop], sentinel=whole.sentinel).plain() for turn in turns]
    texts = [piece(renderer, (message,), first=False).plain() for message in said]
    if not all(text.startswith(shape.header) and text.endswith(shape.closing) for text in texts):
        raise ValueError("an assistant turn has not always the same header and closing")
    return [text[len(shape.header) : len(text) - len(shape.closing)] for text in texts]


def _reads_as(parts: tuple[Part, ...], message: Message, shape: Shape) -> bool:
    calls = [(part.name, json.loads(part.arguments)) for part in parts if part.kind is SpanKind.TOOL_CALL]
    if calls != [(call.name, json.loads(call.arguments)) for call in message.tool_calls]:
        return False
    texts = {kind: "".join(part.text for part in parts if part.kind is kind) for kind in SpanKind}
    if texts[SpanKind.TEXT] != _printed_text(message, shape):
        return False
    reasoning = texts[SpanKind.REASONING]
    if shape.depends:
        return reasoning in ("", message.reasoning)
    return reasoning == (message.reasoning if shape.keeps_reasoning else "")


def _check_stock(renderer: ChatRenderer, stock: Tokenizer, probe: Probe) -> None:
    whole = renderer.render(probe.messages, probe.tools, generation_prompt=True)
    ids = encode_marked(renderer.codec, whole)
    if ids != stock.encode(whole.plain(), add_special_tokens=False).ids:
        raise ValueError("its ids are not those of the tokenizer for the whole text")
    if renderer.codec.bos_id is not None and ids[:2] == [renderer.codec.bos_id] * 2:
        raise ValueError("it begins with two BOS tokens")


def _check_control_text(renderer: ChatRenderer, shape: Shape, probe: Probe) -> None:
    """Broken for rendering, it is whole and plain afterwards."""
    _check_cuts(renderer, shape, probe)
    marked = renderer.render(probe.messages, probe.tools)
    calm = control_probe("control")
    control = probe.messages[0].text[1:-1]
    expected = renderer.render(calm.messages, calm.tools).plain().replace("xcontroly", f"x{control}y")
    if marked.plain() != expected:
        raise ValueError(f"it renders as {_differing(marked.plain(), expected)}")


def _differing(got: str, wanted: str) -> str:
    at = next(
        (place for place, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted))
    )
    return f"{got[at : at + 30]!r} and not {wanted[at : at + 30]!r} at character {at}"
