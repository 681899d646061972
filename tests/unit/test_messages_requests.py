"""Messages bodies: what they mean, and which one error each wrong one gets."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from openforgerl.dialects.base import CountCall, HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.chat import ChatDialect
from openforgerl.dialects.marks import signature_of
from openforgerl.dialects.messages import MessagesDialect
from openforgerl.dialects.messages_events import MessagesRenderer
from openforgerl.errors import AccessError, AssemblyError, DialectError, EngineAborted, OpenForgeError
from openforgerl.records import ImageRef, Message, ModelRequest, Role, Sampling, ToolCall
from pictures import PIXEL

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "bash", "description": "Run.", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "c1", "name": "bash", "input": {}}
PNG = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PIXEL).decode()}
DIGEST = hashlib.sha256(PIXEL).hexdigest()
VERSION = {"anthropic_version": "2023-06-01"}


def http(body: object = None, path: str = "/v1/messages", method: str = "POST", **headers: str) -> HttpRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest(method=method, path=path, query={"beta": "true"}, headers=names, body=raw)


def call_of(**fields: object) -> ParsedCall:
    call = MessagesDialect().parse(http({"messages": [USER], "max_tokens": 9, **fields}))
    assert isinstance(call, ParsedCall)
    return call


def parsed(**fields: object) -> ModelRequest:
    return call_of(**fields).request


def refused(**fields: object) -> DialectError:
    with pytest.raises(DialectError) as caught:
        parsed(**fields)
    return caught.value


def messages(*sent: object) -> tuple[Message, ...]:
    return parsed(messages=list(sent)).messages


def said(*blocks: object) -> tuple[Message, ...]:
    return messages({"role": "user", "content": list(blocks)})


def answered(*blocks: object) -> tuple[Message, ...]:
    """The messages of an assistant's content in a history."""
    return messages(USER, {"role": "assistant", "content": list(blocks)}, USER)[1:-1]


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


def result(call_id: str, **fields: object) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": call_id, **fields}


def test_a_conversation_becomes_messages() -> None:
    request = parsed(
        system=[text("a"), {**text("b"), "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [text("one"), text("two")]},
            {"role": "assistant", "content": [text("I look."), {**USE, "input": {"b": 1, "a": "x"}}]},
            {"role": "user", "content": [result("c1", content="out")]},
            {"role": "assistant", "content": "done"},
            {"role": "system", "content": "be brief"},
            USER,
        ],
    )
    call = ToolCall(id="c1", name="bash", arguments='{"b": 1, "a": "x"}')
    assert request.messages == (
        Message(role=Role.SYSTEM, text="a\nb"),
        Message(role=Role.USER, text="one\ntwo"),
        Message(role=Role.ASSISTANT, text="I look.", tool_calls=(call,)),
        Message(role=Role.TOOL, text="out", tool_call_id="c1"),
        Message(role=Role.ASSISTANT, text="done"),
        Message(role=Role.SYSTEM, text="be brief"),
        Message(role=Role.USER, text="hi"),
    )


@pytest.mark.parametrize("system", [None, "", [], [text("")]])
def test_an_empty_system_is_no_message(system: object) -> None:
    assert parsed(system=system).messages == (Message(role=Role.USER, text="hi"),)


def test_a_string_and_its_list_of_blocks_are_the_same() -> None:
    assert said(text("hi")) == messages(USER)
    assert parsed(system="s") == parsed(system=[text("s")])
    forms: list[object] = [None, "", [], [text("")], [{"type": "text", "text": None}]]
    assert {messages({"role": "user", "content": form}) for form in forms} == {(Message(role=Role.USER),)}
    history = [messages(USER, {"role": "assistant", "content": form}, USER) for form in forms]
    assert {read[1] for read in history} == {Message(role=Role.ASSISTANT)}


def test_arguments_keep_order_and_literals() -> None:
    raw = b"""{"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content":
        [{"type": "tool_use", "id": "c", "name": "f", "input": {"b": 1.0, "a": 1e3}}]},
        {"role": "user", "content": "go on"}]}"""
    call = MessagesDialect().parse(http(raw))
    assert isinstance(call, ParsedCall)
    assert call.request.messages[1].tool_calls[0].arguments == '{"b": 1.0, "a": 1e3}'


@pytest.mark.parametrize("given", [{}, None, "absent"])
def test_missing_arguments_are_an_empty_object(given: object) -> None:
    use = (
        {name: value for name, value in USE.items() if name != "input"}
        if given == "absent"
        else {**USE, "input": given}
    )
    assert answered(use)[0].tool_calls[0].arguments == "{}"


def test_one_answer_that_comes_back_is_one_message() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": signature_of("call-1")}
    (message,) = answered(thinking, text("I look."), USE, {**USE, "id": "c2"})
    assert (message.reasoning, message.reasoning_mark, message.text) == ("hm", "call-1", "I look.")
    assert [call.id for call in message.tool_calls] == ["c1", "c2"]


def test_a_message_begins_where_the_order_goes_back() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": ""}
    read = answered(text("a"), USE, text("b"), thinking, text("c"), thinking, USE)
    assert [(each.reasoning, each.text, len(each.tool_calls)) for each in read] == [
        ("", "a", 1), ("", "b", 0), ("hm", "c", 0), ("hm", "", 1),
    ]  # fmt: skip


def test_thinking_of_two_calls_is_of_two_messages() -> None:
    blocks = [{"type": "thinking", "thinking": name, "signature": signature_of(name)} for name in ("a", "b")]
    assert [(each.reasoning, each.reasoning_mark) for each in answered(*blocks)] == [("a", "a"), ("b", "b")]


def test_redacted_and_emptied_thinking_of_ours_is_a_mark() -> None:
    for block in (
        {"type": "redacted_thinking", "data": signature_of("call-1")},
        {"type": "thinking", "thinking": "", "signature": signature_of("call-1")},
    ):
        assert answered(block, USE)[0].reasoning_mark == "call-1"


def test_foreign_thinking_is_read_and_its_signature_is_noted() -> None:
    request = parsed(
        messages=[
            USER,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "foreign"},
                {"type": "redacted_thinking", "data": "\u00e9foreign"},
                text("a"),
            ]},
            USER,
        ]
    )  # fmt: skip
    assert request.messages[1] == Message(role=Role.ASSISTANT, reasoning="hm", text="a")
    assert request.ignored == ("messages.content.redacted_thinking", "messages.content.signature")


def test_results_stay_in_order_and_text_stays_where_it_stood() -> None:
    read = said(
        result("c2", content=[text("x"), text("y")], is_error=True), text("note"), result("c1"), text("a"), text("b")
    )
    assert read == (
        Message(role=Role.TOOL, tool_call_id="c2", text="x\ny", is_error=True),
        Message(role=Role.USER, text="note"),
        Message(role=Role.TOOL, tool_call_id="c1"),
        Message(role=Role.USER, text="a\nb"),
    )


def test_images_stand_where_they_were_sent() -> None:
    image = {"type": "image", "source": PNG}
    request = parsed(messages=[{"role": "user", "content": [result("c1", content=[text("ab"), image]), image]}])
    assert [message.images for message in request.messages] == [
        (ImageRef(sha256=DIGEST, media_type="image/png", at=2),),
        (ImageRef(sha256=DIGEST, media_type="image/png", at=0),),
    ]
    assert request.images == {DIGEST: PIXEL}


def test_an_image_alone_stays_alone() -> None:
    for blocks in ([{"type": "image", "source": PNG}], [text(""), {"type": "image", "source": PNG}]):
        (message,) = said(*blocks)
        assert (message.text, len(message.images)) == ("", 1)


def test_documents_of_text_are_text() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "words"}
    inner = {"type": "content", "content": [text("more"), {"type": "image", "source": PNG}]}
    (message,) = said(
        text("read"),
        {"type": "document", "source": plain, "title": "T", "context": "C"},
        {"type": "document", "source": inner},
        {"type": "document", "source": {"type": "content", "content": "end"}},
    )
    assert message.text == "read\nT\nC\nwords\nmoreend"
    assert [image.at for image in message.images] == [len("read\nT\nC\nwords\nmore")]


def test_search_results_and_tool_references_are_text() -> None:
    found = {"type": "search_result", "title": "T", "source": "http://a", "content": [text("x")]}
    reference = {"type": "tool_reference", "tool_name": "edit"}
    assert said(result("c1", content=[found, reference]))[0].text == "T\nhttp://a\nx\nedit"


def test_server_side_tools_in_a_history_are_text_and_noted() -> None:
    hit = {"type": "web_search_result", "title": "T", "url": "http://a", "encrypted_content": "xyz"}
    page = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "page"}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
    blocks = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [hit]},
        {"type": "web_fetch_tool_result", "tool_use_id": "s2", "content": {"type": "x", "url": "u", "content": page}},
        {"type": "web_fetch_tool_result", "tool_use_id": "s2", "content": {"type": "x", "content": pdf}},
        {"type": "code_execution_tool_result", "tool_use_id": "s3", "content": {"stdout": "o", "stderr": "e"}},
        {"type": "web_search_tool_result", "content": {"type": "error", "error_code": "unavailable"}},
        {"type": "never_heard_of", "value": 1},
        text("so"),
    ]
    request = parsed(messages=[USER, {"role": "assistant", "content": blocks}, USER])
    assert request.messages[1] == Message(role=Role.ASSISTANT, text="T\nhttp://a\nu\npage\no\ne\nso")
    assert request.ignored == tuple(
        f"messages.content.{kind}"
        for kind in (
            "code_execution_tool_result", "never_heard_of", "server_tool_use", "web_fetch_tool_result",
            "web_search_tool_result",
        )
    )  # fmt: skip


def test_a_summary_of_a_compacted_history_is_text() -> None:
    assert said({"type": "compaction", "content": "what was", "encrypted_content": "x"}, text("go"))[0].text == (
        "what was\ngo"
    )


def test_a_fleeting_system_message_goes_with_the_next_user_message() -> None:
    fleeting = {"role": "system", "content": "now", "clear_at": "next_user_message"}
    assert [message.text for message in messages(USER, fleeting)] == ["hi", "now"]
    assert [message.text for message in messages(USER, fleeting, USER)] == ["hi", "hi"]
    assert [message.text for message in messages(USER, {**fleeting, "clear_at": "never"}, USER)] == ["hi", "now", "hi"]


def test_tool_definitions_keep_key_order_and_number_literals() -> None:
    raw = b"""{"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}], "tools": [{"cache_control": {"a": 1},
        "input_schema": {"z": {"default": 1.0, "enum": null}, "a": {"description": "\\u00e9<&>"}},
        "name": "f", "description": "d", "strict": true, "type": "custom"},
        {"name": "g", "input_schema": {}, "defer_loading": false, "strict": null}]}"""
    call = MessagesDialect().parse(http(raw))
    assert isinstance(call, ParsedCall)
    assert [tool.definition for tool in call.request.tools] == [
        '{"name": "f", "description": "d", "parameters": {"z": {"default": 1.0, "enum": null}, "a": {"description": '
        '"é<&>"}}}',
        '{"name": "g", "parameters": {}}',
    ]
    assert call.request.ignored == ("tools.cache_control", "tools.strict")


TASK = {"name": "task", "input_schema": {"type": "object"}, "defer_loading": True}
TOLD = '<functions>\n<function>{"name": "task", "parameters": {"type": "object"}}</function>\n</functions>'


def test_a_deferred_tool_is_told_where_a_search_found_it() -> None:
    found = [{"type": "tool_reference", "tool_name": name} for name in ("task", "bash", "task")]
    history = [{"role": "user", "content": [result("c1", content=[text("found"), *found]), text("go")]}]
    request = parsed(tools=[TASK, TOOL], messages=history)
    assert [tool.name for tool in request.tools] == ["bash"]
    line = TOLD.splitlines()[1]
    assert request.messages[0].text == f"found\nbash\n<functions>\n{line}\n{line}\n</functions>"
    assert parsed(tools=[TOOL], messages=history).messages[0].text == "found\ntask\nbash\ntask"
    assert request.ignored == ()
    assert parsed(tools=[TASK, TOOL], tool_choice={"type": "tool", "name": "task"}).tool_choice == "task"


def test_deferred_tools_are_offered_where_no_one_else_could_find_them() -> None:
    searched = parsed(tools=[{"type": "tool_search_tool_regex_20251119", "name": "s"}, TASK, TOOL])
    assert [tool.name for tool in searched.tools] == ["task", "bash"]
    assert [tool.name for tool in parsed(tools=[TASK]).tools] == ["task"]


def test_tools_that_come_and_go_amid_a_conversation() -> None:
    def system(kind: str, tool: object) -> dict[str, object]:
        return {"role": "system", "content": [text("now"), {"type": kind, "tool": tool}]}

    definition = {name: value for name, value in TASK.items() if name != "defer_loading"}
    reference = {"type": "tool_reference", "name": "task"}
    request = parsed(
        tools=[TASK, TOOL],
        messages=[
            USER,
            system("tool_addition", reference),
            system("tool_addition", {"type": "tool_definition", "definition": definition}),
            system("tool_addition", {"type": "tool_reference", "name": "bash"}),
            system("tool_removal", reference),
        ],
    )
    assert [message.text for message in request.messages[1:]] == [f"now\n{TOLD}", f"now\n{TOLD}", "now", "now"]
    assert request.ignored == ("messages.content.tool_addition", "messages.content.tool_removal")


def test_tools_without_a_schema_are_left_out_and_noted() -> None:
    typed = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
    ]
    request = parsed(tools=[*typed, TOOL])
    assert [tool.name for tool in request.tools] == ["bash"]
    assert request.ignored == ("tools.bash_20250124", "tools.mcp_toolset", "tools.web_search_20250305")
    assert parsed(tools=typed).tools == ()


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        (None, "auto"),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "bash"}, "bash"),
    ],
)
def test_tool_choices(choice: object, read: str) -> None:
    assert parsed(tools=[TOOL], tool_choice=choice).tool_choice == read


def test_a_wish_for_one_call_at_a_time_is_noted() -> None:
    request = parsed(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert request.ignored == ("tool_choice.disable_parallel_tool_use",)


def test_sampling_fields_are_read() -> None:
    request = parsed(temperature=0, top_p=0.9, top_k=5, stop_sequences=["END", "\n\n"], max_tokens=10.0)
    assert request.sampling == Sampling(temperature=0.0, top_p=0.9, top_k=5, stop=("END", "\n\n"), max_tokens=10)
    assert parsed(temperature=None, stop_sequences=None).sampling == Sampling(max_tokens=9)


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        (None, True),
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive", "display": "omitted"}, True),
        ({"type": "disabled"}, False),
    ],
)
def test_thinking_is_shown_unless_it_is_disabled(thinking: object, shown: bool) -> None:
    renderer = call_of(thinking=thinking).renderer
    assert isinstance(renderer, MessagesRenderer)
    assert renderer.shows_thinking is shown
    assert parsed(thinking=thinking).ignored == (("thinking",) if thinking else ())


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_a_wanted_schema_is_kept_in_order(name: str) -> None:
    wish = {"type": "json_schema", "schema": {"type": "object", "b": 1, "a": 2}}
    request = parsed(**{name: {"format": wish, "effort": "low"} if name == "output_config" else wish})
    assert request.output_schema == '{"type": "object", "b": 1, "a": 2}'
    assert request.ignored == (("output_config.effort",) if name == "output_config" else ())
    assert parsed(output_config={"format": None}).output_schema == ""


def test_harmless_fields_are_passed_over_by_name() -> None:
    cached = {**text("x"), "cache_control": {"type": "ephemeral"}, "citations": None}
    request = parsed(
        metadata={"user_id": "u"}, service_tier="auto", cache_control={"type": "ephemeral"}, unheard_of=1,
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, container=None,
        messages=[{"role": "user", "content": [cached, result("c1", cache_control={"type": "ephemeral"})], "id": "m1"}],
    )  # fmt: skip
    assert request.ignored == (
        "cache_control", "context_management", "messages.content.cache_control", "messages.id", "metadata",
        "service_tier", "unheard_of",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", None),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", "9"),
        ("temperature", -1),
        ("temperature", "1"),
        ("top_p", 1.5),
        ("top_k", 0.5),
        ("stop_sequences", "END"),
        ("stop_sequences", ["a", ""]),
        ("stop_sequences", [1]),
        ("stream", "yes"),
        ("model", 3),
        ("system", 3),
        ("system", [{"type": "image", "source": PNG}]),
        ("messages", None),
        ("messages", []),
        ("messages", "hi"),
        ("messages", ["hi"]),
        ("tools", {"a": 1}),
        ("tools", [{"name": "f"}]),
        ("tools", [{"input_schema": {}}]),
        ("tools", [{"name": "f", "input_schema": "object"}]),
        ("tools", [{"name": "f", "input_schema": {}, "description": 1}]),
        ("tool_choice", "auto"),
        ("tool_choice", {"type": "any"}),
        ("tool_choice", {"type": "tool", "name": "absent"}),
        ("tool_choice", {"type": "tool"}),
        ("tool_choice", {"type": "function"}),
        ("thinking", "enabled"),
        ("output_config", {"format": {"type": "yaml"}}),
        ("output_config", {"format": {"type": "json_schema"}}),
        ("output_format", {"type": "json_schema", "schema": []}),
        ("container", "container_1"),
        ("mcp_servers", [{"type": "url", "url": "http://a", "name": "a"}]),
        ("compaction", {"type": "summarize"}),
        ("thread", {"type": "create"}),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    error = refused(**{field: value})
    assert error.http_status == 400
    assert (error.field or "").startswith(field)
    assert str(error).startswith(field)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "tool", "content": "x"}, "role"),
        ({"content": "x"}, "role"),
        ({"role": "user", "content": 1}, "content"),
        ({"role": "user", "content": ["x"]}, "content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "audio"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}, "content[0].type"),
        ({"role": "user", "content": [USE]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "tool_result"}]}, "content[0].tool_use_id"),
        ({"role": "user", "content": [result("c", content=1)]}, "content[0].content"),
        ({"role": "user", "content": [result("c", is_error="no")]}, "content[0].is_error"),
        ({"role": "user", "content": [result("c", content=[USE])]}, "content[0].content[0].type"),
        ({"role": "user", "content": [{"type": "image"}]}, "content[0].source"),
        (
            {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a"}}]},
            "content[0].source.type",
        ),
        (
            {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]},
            "content[0].source.type",
        ),
        ({"role": "user", "content": [{"type": "image", "source": {**PNG, "data": "Y"}}]}, "content[0].source"),
        (
            {"role": "user", "content": [{"type": "image", "source": {**PNG, "media_type": "image/tiff"}}]},
            "content[0].source",
        ),
        (
            {"role": "user", "content": [{"type": "document", "source": {**PNG, "media_type": "application/pdf"}}]},
            "content[0].source.type",
        ),
        (
            {"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": [USE]}}]},
            "content[0].source.content[0].type",
        ),
        ({"role": "assistant", "content": [{**USE, "id": ""}]}, "content[0].id"),
        ({"role": "assistant", "content": [{**USE, "name": None}]}, "content[0].name"),
        ({"role": "assistant", "content": [{**USE, "input": "ls"}]}, "content[0].input"),
        ({"role": "assistant", "content": [{"type": "image", "source": PNG}]}, "content[0].type"),
        ({"role": "assistant", "content": [result("c")]}, "content[0].type"),
        ({"role": "system", "content": [{"type": "image", "source": PNG}]}, "content[0].type"),
        ({"role": "system", "content": [{"type": "tool_addition", "tool": {}}]}, "content[0].tool.type"),
        (
            {"role": "user", "content": [result("c", content=[{"type": "tool_reference"}])]},
            "content[0].content[0].tool_name",
        ),
        ({"role": "system", "content": "x", "clear_at": "noon"}, "clear_at"),
    ],
)
def test_a_wrong_message_is_named_by_its_place(message: object, field: str) -> None:
    error = refused(messages=[USER, message, USER])
    assert (error.http_status, error.field) == (400, f"messages[1].{field}")
    assert str(error).startswith(f"messages[1].{field}")


def test_a_prefill_is_refused_with_the_way_out() -> None:
    error = refused(messages=[USER, {"role": "assistant", "content": "The answer is ("}])
    assert error.field == "messages[1]"
    assert "the conversation must end with a user message" in str(error)


def test_a_count_needs_no_limit_and_may_end_with_the_assistant() -> None:
    body = {"messages": [USER, {"role": "assistant", "content": "x"}], "tools": [TOOL]}
    call = MessagesDialect().parse(http(body, "/v1/messages/count_tokens"))
    assert isinstance(call, CountCall)
    assert [message.role for message in call.request.messages] == [Role.USER, Role.ASSISTANT]
    assert json.loads(call.answer(7).body) == {"input_tokens": 7}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"[]", "body: expected an object"),
        (b"\xff", "not UTF-8"),
        (b'{"a": NaN}', "not a JSON number"),
        (b'{"messages": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(DialectError, match=words):
        MessagesDialect().parse(http(body))


@pytest.mark.parametrize("prefix", ["", "/v1", "/v1/v1"])
def test_paths_and_headers_that_are_claimed(prefix: str) -> None:
    dialect, bearer, key = MessagesDialect(), {"authorization": "Bearer k"}, {"x_api_key": "k"}
    for path in ("/messages", "/messages/count_tokens"):
        assert dialect.claims(http(path=prefix + path, **bearer))
    for path in ("", "/", "/models", "/models/claude-x"):
        assert dialect.claims(http(path=prefix + path, method="GET", **VERSION, **bearer))
        assert dialect.claims(http(path=prefix + path, method="GET", **key))
        assert not dialect.claims(http(path=prefix + path, method="GET", **bearer))
        assert not dialect.claims(http(path=prefix + path, method="GET", **bearer, **key))
        assert not dialect.claims(http(path=prefix + path, method="GET", **key, x_goog_api_key="k"))
    for path in ("/chat/completions", "/responses", "/messages/batches", "/files"):
        assert not dialect.claims(http(path=prefix + path, **VERSION))


@pytest.mark.parametrize("path", ["/v1/messages", "/messages/count_tokens", "/v1/models", "/", "/models/x"])
def test_no_other_dialect_claims_what_the_sdk_asks(path: str) -> None:
    request = http(path=path, method="GET", x_api_key="k", **VERSION)
    assert MessagesDialect().claims(request)
    assert not ChatDialect().claims(request)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"x_api_key": "k"}, "k"),
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer  k "}, "k"),
        ({"authorization": "Basic k"}, ""),
        ({}, ""),
    ],
)
def test_keys(headers: dict[str, str], key: str) -> None:
    assert MessagesDialect().key(http(**headers)) == key


def test_probes_are_answered_quietly() -> None:
    dialect = MessagesDialect(model_name="tiny")

    def probe(method: str, path: str) -> HttpAnswer:
        answer = dialect.parse(http(b"", path, method))
        assert isinstance(answer, HttpAnswer)
        assert answer.status == 200
        return answer

    assert probe("HEAD", "/").body == b""
    assert probe("HEAD", "/v1/messages").body == b""
    listing = json.loads(probe("GET", "/v1/models").body)
    assert ([entry["id"] for entry in listing["data"]], listing["has_more"]) == (["tiny"], False)
    assert json.loads(probe("GET", "/models/claude-x").body)["id"] == "claude-x"


@pytest.mark.parametrize(("method", "path"), [("GET", "/messages"), ("DELETE", "/v1/messages"), ("POST", "/v1/models")])
def test_other_methods_are_told_the_way(method: str, path: str) -> None:
    with pytest.raises(DialectError, match="send POST") as caught:
        MessagesDialect().parse(http({}, path, method))
    assert caught.value.http_status == 405


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (DialectError("x", field="f"), 400, "invalid_request_error"),
        (AssemblyError("x"), 400, "invalid_request_error"),
        (AccessError("x"), 401, "authentication_error"),
        (AccessError("x", http_status=403), 403, "permission_error"),
        (DialectError("x", http_status=404), 404, "not_found_error"),
        (DialectError("x", http_status=413), 413, "request_too_large"),
        (AccessError("x", http_status=429), 429, "rate_limit_error"),
        (OpenForgeError("x"), 500, "api_error"),
        (EngineAborted("x"), 503, "overloaded_error"),
    ],
)
def test_errors_are_of_the_vendors_kinds(error: OpenForgeError, status: int, kind: str) -> None:
    answer = MessagesDialect().failure(error)
    body = json.loads(answer.body)
    assert (answer.status, body["type"]) == (status, "error")
    assert body["error"] == {"type": kind, "message": "x", "details": {"error_code": error.code}}
