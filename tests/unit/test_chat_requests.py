"""Chat Completions bodies: what they mean, and which one error each wrong one gets."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from openforgerl.dialects.base import HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.chat import ChatDialect
from openforgerl.errors import AccessError, DialectError, EngineAborted
from openforgerl.records import ImageRef, Message, ModelRequest, Role, Sampling, ToolCall
from pictures import PIXEL

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


def http(body: object, path: str = "/v1/chat/completions", method: str = "POST", **headers: str) -> HttpRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest(method=method, path=path, query={}, headers=names, body=raw)


def parsed(**fields: object) -> ModelRequest:
    call = ChatDialect().parse(http({"messages": [USER], **fields}))
    assert isinstance(call, ParsedCall)
    return call.request


def refused(**fields: object) -> DialectError:
    with pytest.raises(DialectError) as caught:
        parsed(**fields)
    return caught.value


def messages(*sent: object) -> tuple[Message, ...]:
    return parsed(messages=list(sent)).messages


def test_roles_and_contents_become_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a":1.0}'}}
    read = messages(
        {"role": "system", "content": "s"},
        {"role": "developer", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "out"}]},
    )
    assert read == (
        Message(role=Role.SYSTEM, text="s"),
        Message(role=Role.DEVELOPER, text="d"),
        Message(role=Role.USER, text="a\nb"),
        Message(
            role=Role.ASSISTANT,
            reasoning="r",
            tool_calls=(ToolCall(id="c1", name="bash", arguments='{"a":1.0}'),),
        ),
        Message(role=Role.TOOL, text="out", tool_call_id="c1"),
    )


def test_null_empty_and_missing_contents_are_the_same() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    assistant = {"role": "assistant", "tool_calls": [call]}
    forms = [{**assistant, "content": None}, {**assistant, "content": ""}, {**assistant, "content": []}, assistant]
    assert len({messages(USER, form)[1] for form in forms}) == 1


def test_reasoning_is_read_under_both_names() -> None:
    assert messages(USER, {"role": "assistant", "content": "x", "reasoning": "why"})[1].reasoning == "why"


def test_arguments_sent_as_an_object_keep_order_and_literals() -> None:
    raw = b"""{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls":
        [{"id": "c", "function": {"name": "f", "arguments": {"b": 1.0, "a": 1e3}}}]}]}"""
    call = ChatDialect().parse(http(raw))
    assert isinstance(call, ParsedCall)
    assert call.request.messages[1].tool_calls[0].arguments == '{"b": 1.0, "a": 1e3}'


def test_tool_definitions_keep_key_order_nulls_and_number_literals() -> None:
    raw = b"""{"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function":
        {"name": "f", "strict": null, "parameters": {"z": {"default": 1.0, "maximum": 12345678901234567890, "enum":
        null}, "a": {"description": "\\u00e9<&>"}}, "description": "d"}}]}"""
    call = ChatDialect().parse(http(raw))
    assert isinstance(call, ParsedCall)
    assert call.request.tools[0].definition == (
        '{"name": "f", "strict": null, "parameters": {"z": {"default": 1.0, "maximum": 12345678901234567890, "enum": '
        'null}, "a": {"description": "é<&>"}}, "description": "d"}'
    )


def test_server_side_tools_are_left_out_and_noted() -> None:
    request = parsed(tools=[{"type": "web_search_preview"}, TOOL])
    assert [tool.name for tool in request.tools] == ["bash"]
    assert request.ignored == ("tools.web_search_preview",)


def test_strict_tools_are_noted_as_not_enforced() -> None:
    strict = {"type": "function", "function": {"name": "bash", "strict": True}}
    assert parsed(tools=[strict]).ignored == ("tools.strict",)


def test_sampling_fields_are_read_and_the_smaller_cap_counts() -> None:
    request = parsed(
        temperature=0, top_p=0.9, top_k=5, min_p=0.1, presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.1,
        seed=7, stop="END", max_tokens=20, max_completion_tokens=10.0,
    )  # fmt: skip
    assert request.sampling == Sampling(
        temperature=0.0, top_p=0.9, top_k=5, min_p=0.1, presence_penalty=1.0, frequency_penalty=-1.0,
        repetition_penalty=1.1, seed=7, stop=("END",), max_tokens=10,
    )  # fmt: skip


def test_unset_sampling_stays_unset() -> None:
    assert parsed(temperature=None, stop=None, max_tokens=None).sampling == Sampling()


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("auto", "auto"),
        ("none", "none"),
        (None, "auto"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "bash"}}, "bash"),
    ],
)
def test_tool_choices(choice: object, read: str) -> None:
    assert parsed(tools=[TOOL], tool_choice=choice).tool_choice == read


def test_an_empty_tool_list_with_auto_is_no_tools() -> None:
    assert parsed(tools=[], tool_choice="auto").tools == ()


def test_harmless_fields_are_passed_over_by_name() -> None:
    request = parsed(
        user="u", store=False, metadata={"a": 1}, parallel_tool_calls=True, service_tier="auto", prompt_cache_key="k",
        reasoning_effort="low", unheard_of=1,
        messages=[{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}],
    )  # fmt: skip
    assert request.ignored == (
        "messages.content.cache_control", "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning_effort",
        "service_tier", "store", "unheard_of", "user",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"1": 2}),
        ("response_format", {"type": "yaml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": "object"}}),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content"}),
        ("web_search_options", {"a": 1}),
        ("logprobs", True),
        ("top_logprobs", 2),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("n", 2),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("temperature", -1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 1.5),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("stop", ["a", 1]),
        ("stop", ""),
        ("stream", "yes"),
        ("model", 3),
        ("messages", []),
        ("messages", "hi"),
        ("messages", ["hi"]),
        ("tools", {"a": 1}),
        ("tools", [{"type": "function"}]),
        ("tools", [{"type": "function", "function": {"name": ""}}]),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": "object"}}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "absent"}}),
        ("stream_options", {"include_usage": 1}),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    error = refused(**{field: value})
    assert error.http_status == 400
    assert (error.field or "").startswith(field)
    assert str(error).startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [("logit_bias", {}), ("logprobs", False), ("top_logprobs", 0), ("n", 1), ("response_format", {"type": "text"}),
     ("modalities", ["text"]), ("audio", None), ("functions", [])],
)  # fmt: skip
def test_a_field_that_says_nothing_is_accepted(field: str, value: object) -> None:
    assert parsed(**{field: value}).ignored == ()


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "function", "name": "f", "content": "x"}, "tool_call_id"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            "messages[0].content[0].image_url",
        ),
        ({"role": "user", "content": [{"type": "input_audio"}]}, 'messages[0].content[0].type: "input_audio"'),
        ({"role": "user", "content": [{"type": "text", "text": 3}]}, "messages[0].content[0].text"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": ""}}, "tool_calls"),
        ({"role": "assistant", "audio": {"id": "a"}}, "messages[0].audio"),
        ({"role": "assistant", "content": "x", "prefix": True}, "messages[0].prefix"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}, "messages[0].tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]}, "function.name"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": 3}}]}, "arguments"),
    ],
)
def test_a_wrong_message_is_named(message: object, named: str) -> None:
    assert named in str(refused(messages=[message]))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b'{"messages": [', "not JSON"),
        (b'{"temperature": NaN, "messages": []}', "NaN"),
        (b"[]", "body: expected an object"),
        (b'{"messages": "\xff"}', "not UTF-8 at byte 14"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
def test_a_body_that_is_no_json_object_says_where(body: bytes, said: str) -> None:
    with pytest.raises(DialectError, match=said):
        ChatDialect().parse(http(body))


@pytest.mark.parametrize("depth", [400, 5000])
def test_a_deeply_nested_tool_is_refused(depth: int) -> None:
    nested = '{"a": ' * depth + "{}" + "}" * depth
    body = '{"messages": [{"role": "user"}], "tools": [{"function": {"name": "f", "parameters": NESTED}}]}'
    with pytest.raises(DialectError, match="nested too deeply"):
        ChatDialect().parse(http(body.replace("NESTED", nested).encode()))


def test_half_of_a_surrogate_pair_becomes_a_replacement_character() -> None:
    raw = b'{"messages": [{"role": "user", "content": "cut \\ud83d here, whole \\ud83d\\ude00"}]}'
    call = ChatDialect().parse(http(raw))
    assert isinstance(call, ParsedCall)
    assert call.request.messages[0].text == "cut � here, whole 😀"


def test_both_styles_of_base_url_and_probes_are_claimed() -> None:
    dialect = ChatDialect()
    for path in ("/v1/chat/completions", "/chat/completions", "/v1/models", "/models", "/v1/models/x", "", "/", "/v1"):
        assert dialect.claims(http(b"", path, "GET")), path
    for path in ("/v1/messages", "/v1/responses", "/v1beta/models", "/v1/completions"):
        assert not dialect.claims(http(b"", path)), path
    for headers in ({"anthropic_version": "2023-06-01"}, {"x_goog_api_key": "k"}, {"x_api_key": "k"}):
        assert not dialect.claims(http(b"", "/v1/models", "GET", **headers)), headers
    assert dialect.claims(http(b"", "/v1/models", "GET", x_api_key="k", authorization="Bearer k"))
    assert dialect.claims(http(b"", "/v1/chat/completions", x_api_key="k"))


def test_probes_are_answered_quietly() -> None:
    dialect = ChatDialect(model_name="m7")
    listing = dialect.parse(http(b"", "/v1/models", "GET"))
    one = dialect.parse(http(b"", "/models/a/b", "GET"))
    head = dialect.parse(http(b"", "", "HEAD"))
    assert isinstance(listing, HttpAnswer)
    assert isinstance(one, HttpAnswer)
    assert json.loads(listing.body)["data"][0]["id"] == "m7"
    assert json.loads(one.body)["id"] == "a/b"
    assert head == HttpAnswer(status=200, body=b"")


def test_another_method_is_refused() -> None:
    with pytest.raises(DialectError, match="send POST") as caught:
        ChatDialect().parse(http(b"", method="GET"))
    assert caught.value.http_status == 405


@pytest.mark.parametrize("headers", [{"authorization": "Bearer k1"}, {"x_api_key": "k1"}, {"api_key": "k1"}])
def test_the_key_is_found_where_clients_put_it(headers: dict[str, str]) -> None:
    assert ChatDialect().key(http(b"", **headers)) == "k1"


def test_no_key_is_an_empty_key() -> None:
    assert ChatDialect().key(http(b"", authorization="Basic abc")) == ""


def test_errors_have_openai_form() -> None:
    answer = ChatDialect().failure(DialectError("n: expected 1", field="n", code="unsupported_value"))
    assert (answer.status, json.loads(answer.body)) == (
        400,
        {
            "error": {
                "message": "n: expected 1",
                "type": "invalid_request_error",
                "param": "n",
                "code": "unsupported_value",
            }
        },
    )
    kinds = [ChatDialect().failure(error) for error in (AccessError("no"), EngineAborted("later"))]
    assert [(each.status, json.loads(each.body)["error"]["code"]) for each in kinds] == [
        (401, "invalid_api_key"),
        (503, "engine_aborted"),
    ]


def test_the_schema_of_an_answer_is_kept_as_it_was_written() -> None:
    schema = {"type": "object", "properties": {"b": {"minimum": 1.0}, "a": {}}}
    asked = parsed(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert asked.output_schema == '{"type": "object", "properties": {"b": {"minimum": 1.0}, "a": {}}}'
    assert parsed(response_format={"type": "json_object"}).output_schema == '{"type": "object"}'


def test_an_image_keeps_its_bytes_and_its_place() -> None:
    url = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    parts = [
        {"type": "text", "text": "ab"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "c"},
    ]
    asked = parsed(messages=[{"role": "user", "content": parts}])
    (message,), digest = asked.messages, hashlib.sha256(PIXEL).hexdigest()
    assert message.text == "abc"
    assert message.images == (ImageRef(sha256=digest, media_type="image/png", at=2),)
    assert asked.images == {digest: PIXEL}


@pytest.mark.parametrize(
    "url",
    ["http://example.org/a.png", "data:image/png,abc", "data:text/plain;base64,YQ==", "data:image/png;base64,Y",
     "data:image/png;base64,", "file:///etc/passwd"],
)  # fmt: skip
def test_an_image_that_is_not_in_the_request_is_refused(url: str) -> None:
    error = refused(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
    assert (error.http_status, error.field) == (400, "messages[0].content[0].image_url")
