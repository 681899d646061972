"""Gemini bodies: what they mean, and which one error each wrong one gets."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from openforgerl.dialects.base import CountCall, HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.chat import ChatDialect
from openforgerl.dialects.gemini import GeminiDialect
from openforgerl.dialects.gemini_events import GeminiRenderer
from openforgerl.dialects.marks import signature_of
from openforgerl.dialects.messages import MessagesDialect
from openforgerl.errors import AccessError, AssemblyError, ContextFull, DialectError, EngineAborted, OpenForgeError
from openforgerl.records import ImageRef, Message, ModelRequest, Role, Sampling, ToolCall
from pictures import PIXEL

USER = {"role": "user", "parts": [{"text": "hi"}]}
RAW = PIXEL + b"\xfb\xff\xfe\xfb\xff\xfe"
PNG = {"mimeType": "image/png", "data": base64.b64encode(RAW).decode()}
DIGEST = hashlib.sha256(RAW).hexdigest()
GENERATE = "/v1beta/models/gemini-x:generateContent"


def http(body: object = None, path: str = GENERATE, method: str = "POST", **headers: str) -> HttpRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    path, _, query = path.partition("?")
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    pairs = dict(pair.split("=") for pair in query.split("&") if pair)
    return HttpRequest(method=method, path=path, query=pairs, headers=names, body=raw)


def call_of(**fields: object) -> ParsedCall:
    call = GeminiDialect().parse(http({"contents": [USER], **fields}))
    assert isinstance(call, ParsedCall)
    return call


def parsed(**fields: object) -> ModelRequest:
    return call_of(**fields).request


def refused(**fields: object) -> DialectError:
    with pytest.raises(DialectError) as caught:
        parsed(**fields)
    return caught.value


def contents(*sent: object) -> tuple[Message, ...]:
    return parsed(contents=list(sent)).messages


def said(*parts: object, role: str = "user") -> tuple[Message, ...]:
    return contents({"role": role, "parts": list(parts)})


def answered(*parts: object) -> tuple[Message, ...]:
    """The messages of a model content in a history."""
    return contents(USER, {"role": "model", "parts": list(parts)}, USER)[1:-1]


def config(**fields: object) -> ModelRequest:
    return parsed(generationConfig=fields)


def called(name: str, **fields: object) -> dict[str, Any]:
    return {"functionCall": {"name": name, **fields}}


def result(name: str, response: object, **fields: object) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": response, **fields}}


def function(name: str = "bash", **fields: object) -> dict[str, Any]:
    return {"functionDeclarations": [{"name": name, "description": "Run.", **fields}]}


def test_a_conversation_becomes_messages() -> None:
    request = parsed(
        systemInstruction={"parts": [{"text": "a"}, {"text": "b"}]},
        contents=[
            {"parts": [{"text": "one"}, {"text": "two"}]},
            {"role": "model", "parts": [{"text": "I "}, {"text": "look."}, called("bash", id="c1", args={"b": 1})]},
            {"role": "user", "parts": [result("bash", {"output": "out"}, id="c1")]},
            {"role": "model", "parts": [{"text": "done"}]},
            USER,
        ],
    )
    assert request.messages == (
        Message(role=Role.SYSTEM, text="a\nb"),
        Message(role=Role.USER, text="one\ntwo"),
        Message(
            role=Role.ASSISTANT, text="I look.", tool_calls=(ToolCall(id="c1", name="bash", arguments='{"b": 1}'),)
        ),
        Message(role=Role.TOOL, text="out", tool_call_id="c1", name="bash"),
        Message(role=Role.ASSISTANT, text="done"),
        Message(role=Role.USER, text="hi"),
    )
    assert (request.model, request.ignored) == ("gemini-x", ())


def test_both_spellings_of_the_fields_are_read() -> None:
    snake = {
        "contents": [{"parts": [{"inline_data": {"mime_type": "image/png", "data": PNG["data"]}}]}],
        "system_instruction": {"parts": [{"text": "a"}]},
        "generation_config": {"max_output_tokens": 9, "top_p": 0.5, "stop_sequences": ["x"]},
        "tools": [{"function_declarations": [{"name": "bash", "parameters_json_schema": {"type": "object"}}]}],
        "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["bash"]}},
    }
    camel = {
        "contents": [{"parts": [{"inlineData": PNG}]}],
        "systemInstruction": {"parts": [{"text": "a"}]},
        "generationConfig": {"maxOutputTokens": 9, "topP": 0.5, "stopSequences": ["x"]},
        "tools": [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": {"type": "object"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["bash"]}},
    }
    assert parsed(**snake) == parsed(**camel)
    assert parsed(**camel).tool_choice == "required"


def test_the_arguments_of_a_call_keep_their_spelling_whatever_their_keys_are() -> None:
    (message,) = answered(called("bash", args={"snake_key": 1, "b": {"x_y": 2}}))
    assert message.tool_calls[0].arguments == '{"snake_key": 1, "b": {"x_y": 2}}'
    body = b'{"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"n": 1.0}}}]},' + (
        json.dumps(USER).encode() + b"]}"
    )
    call = GeminiDialect().parse(http(body))
    assert isinstance(call, ParsedCall)
    assert call.request.messages[0].tool_calls[0].arguments == '{"n": 1.0}'


def test_calls_and_results_without_ids_are_paired_by_name_and_order() -> None:
    model = {"role": "model", "parts": [called("a", args={"n": 1}), called("b"), called("a", args={"n": 2})]}
    results = {"role": "user", "parts": [result("b", {}), result("a", {"output": "1"}), result("a", {"output": "2"})]}
    _, turn, *tools = contents(USER, model, results)
    ids = [call.id for call in turn.tool_calls]
    assert len(set(ids)) == 3
    assert [message.tool_call_id for message in tools] == [ids[1], ids[0], ids[2]]
    longer = contents(USER, model, results, model, results)
    assert longer[: len(tools) + 2] == (longer[0], turn, *tools)
    assert {call.id for call in longer[5].tool_calls}.isdisjoint(ids)


def test_calls_of_one_turn_with_text_between_them_are_open_together() -> None:
    model = {"role": "model", "parts": [called("a"), {"text": "and"}, called("b"), {"text": "and"}, called("a")]}
    found = contents(USER, model, {"role": "user", "parts": [result(name, {}) for name in ("a", "b", "a")]})
    calls = [call for message in found for call in message.tool_calls]
    results = [message for message in found if message.role is Role.TOOL]
    assert [(message.tool_call_id, message.name) for message in results] == [(call.id, call.name) for call in calls]
    assert len({call.id for call in calls}) == 3


def test_a_call_that_was_never_answered_takes_no_result_of_a_later_turn() -> None:
    model = {"role": "model", "parts": [called("a")]}
    found = contents(USER, model, USER, model, {"role": "user", "parts": [result("a", {})]})
    calls = [call for message in found for call in message.tool_calls]
    assert found[-1].tool_call_id == calls[1].id


@pytest.mark.parametrize("given", ["call0", "call1"])
def test_an_id_that_a_client_gave_is_given_to_no_other_call(given: str) -> None:
    model = {"role": "model", "parts": [called("a"), called("b", id=given), called("a")]}
    results = {"role": "user", "parts": [result("a", {}), result("a", {}), result("b", {}, id=given)]}
    _, turn, *tools = contents(USER, model, results)
    ids = [call.id for call in turn.tool_calls]
    assert len(set(ids)) == 3
    assert [message.tool_call_id for message in tools] == [ids[0], ids[2], given]


def test_one_object_stands_for_a_list_of_it() -> None:
    lists = {
        "contents": [{"parts": [{"text": "hi"}]}],
        "systemInstruction": {"parts": [{"text": "s"}]},
        "tools": [function()],
    }
    declared = function()["functionDeclarations"][0]
    objects = {
        "contents": {"parts": {"text": "hi"}},
        "systemInstruction": {"parts": {"text": "s"}},
        "tools": {"function_declarations": declared},
    }
    assert parsed(**objects) == parsed(**lists)


@pytest.mark.parametrize(
    "given",
    [
        "a\nb",
        {"parts": [{"text": "a"}, {"text": "b"}]},
        {"role": "system", "parts": [{"text": "a"}, {"text": "b"}]},
        {"text": "a\nb"},
        ["a", "b"],
        [{"text": "a"}, "b"],
        [{"parts": [{"text": "a"}]}, {"parts": {"text": "b"}}],
    ],
)
@pytest.mark.parametrize("name", ["systemInstruction", "system_instruction"])
def test_instructions_are_read_in_every_spelling(name: str, given: object) -> None:
    assert parsed(**{name: given}).messages[0] == Message(role=Role.SYSTEM, text="a\nb")


@pytest.mark.parametrize("given", [None, "", {}, [], {"parts": []}, {"parts": None}, [{"text": ""}]])
def test_instructions_that_say_nothing_are_no_message(given: object) -> None:
    assert parsed(systemInstruction=given).messages == (Message(role=Role.USER, text="hi"),)


def test_a_turn_as_gemini_cli_sends_it_back_is_one_message_with_our_mark() -> None:
    """It drops thoughts, and signs the first call of a turn with a word of its own where we signed the text."""
    turn = [
        {"text": "I look.", "thoughtSignature": signature_of("call7")},
        {**called("bash", id="c1", args={"n": 1}), "thoughtSignature": "skip_thought_signature_validator"},
        called("read", id="c2"),
    ]
    request = parsed(contents=[USER, {"parts": turn, "role": "model"}, USER])
    assert request.messages[1:-1] == (
        Message(
            role=Role.ASSISTANT,
            text="I look.",
            reasoning_mark="call7",
            tool_calls=(
                ToolCall(id="c1", name="bash", arguments='{"n": 1}'),
                ToolCall(id="c2", name="read", arguments="{}"),
            ),
        ),
    )
    assert request.ignored == ("contents.parts.thoughtSignature",)


@pytest.mark.parametrize(
    ("response", "text", "is_error"),
    [
        ({"output": "out"}, "out", False),
        ({"error": "no such file"}, "no such file", True),
        ({"output": {"a": [1]}}, '{"a": [1]}', False),
        ({"content": "x", "exit": 0}, '{"content": "x", "exit": 0}', False),
        ({}, "{}", False),
        (None, "{}", False),
    ],
)
def test_the_result_of_a_function_is_text(response: object, text: str, is_error: bool) -> None:
    (message,) = said(result("bash", response, id="c1"))
    assert (message.role, message.text, message.is_error) == (Role.TOOL, text, is_error)


def test_results_come_before_what_the_user_says_behind_them() -> None:
    roles = [message.role for message in said({"text": "x"}, result("a", {}), {"text": "y"}, result("b", {}))]
    assert roles == [Role.USER, Role.TOOL, Role.USER, Role.TOOL]
    assert said(result("a", {}), role="function")[0].role is Role.TOOL


def test_images_are_kept_by_digest_in_both_alphabets_of_base64() -> None:
    urlsafe = {"mimeType": "image/png", "data": base64.urlsafe_b64encode(RAW).decode().rstrip("=")}
    parts = [
        {"text": "ab"},
        {"inlineData": PNG},
        {"inlineData": urlsafe},
        result("shot", {"output": "o"}, parts=[{"inlineData": PNG}]),
    ]
    request = parsed(contents=[{"role": "user", "parts": parts}])
    assert request.images == {DIGEST: RAW}
    assert request.messages[0].images == (ImageRef(sha256=DIGEST, media_type="image/png", at=2),) * 2
    assert request.messages[1].images == (ImageRef(sha256=DIGEST, media_type="image/png", at=1),)


def test_thoughts_and_signatures_name_the_call_that_they_come_from() -> None:
    signature = signature_of("call7")
    (message,) = answered({"text": "hm", "thought": True}, {**called("a"), "thoughtSignature": signature}, called("b"))
    assert (message.reasoning, message.reasoning_mark, len(message.tool_calls)) == ("hm", "call7", 2)
    (message,) = answered({"text": "x", "thought_signature": signature}, {"text": "y"})
    assert (message.text, message.reasoning, message.reasoning_mark) == ("xy", "", "call7")
    (message,) = answered({"text": "", "thoughtSignature": signature})
    assert message.reasoning_mark == "call7"


def test_a_foreign_signature_is_noted_and_left_out() -> None:
    request = parsed(contents=[USER, {"role": "model", "parts": [{"text": "x", "thoughtSignature": "AAAA"}]}, USER])
    assert request.messages[1].reasoning_mark == ""
    assert request.ignored == ("contents.parts.thoughtSignature",)


def test_contents_of_the_model_that_follow_each_other_are_one_turn_until_the_order_goes_back() -> None:
    pieces = [{"text": "a"}, {"text": "b"}, called("f"), {"text": "c"}]
    found = contents(USER, *({"role": "model", "parts": [piece]} for piece in pieces), USER)
    assert [(message.text, len(message.tool_calls)) for message in found[1:-1]] == [("ab", 1), ("c", 0)]


def test_schemas_of_functions_are_json_schemas() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"type": {"type": "STRING", "enum": ["A"]}, "l": {"type": "ARRAY", "items": {"type": "INTEGER"}}},
        "anyOf": [{"type": "NULL"}],
        "required": ["type"],
    }
    (tool,) = parsed(tools=[function(parameters=schema)]).tools
    assert json.loads(tool.definition) == {
        "name": "bash",
        "description": "Run.",
        "parameters": {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["A"]},
                "l": {"type": "array", "items": {"type": "integer"}},
            },
            "anyOf": [{"type": "null"}],
            "required": ["type"],
        },
    }
    (bare,) = parsed(tools=[function()]).tools
    assert json.loads(bare.definition)["parameters"] == {"type": "object", "properties": {}}


def test_keywords_of_a_schema_may_be_in_snake_case_and_names_of_properties_stay() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"any_of": {"any_of": [{"type": "STRING"}], "max_length": 3}},
        "additional_properties": {"type": "NUMBER"},
        "$defs": {"a_b": {"type": "STRING", "enum": ["x_y"]}},
    }
    (tool,) = parsed(tools=[function(parameters=schema)]).tools
    assert json.loads(tool.definition)["parameters"] == {
        "type": "object",
        "properties": {"any_of": {"anyOf": [{"type": "string"}], "maxLength": 3}},
        "additionalProperties": {"type": "number"},
        "$defs": {"a_b": {"type": "string", "enum": ["x_y"]}},
    }
    (exact,) = parsed(tools=[function(parametersJsonSchema={"x_y": {"type": "OBJECT"}})]).tools
    assert json.loads(exact.definition)["parameters"] == {"x_y": {"type": "OBJECT"}}


def test_tools_of_a_server_are_left_out_and_noted() -> None:
    request = parsed(
        tools=[{"googleSearch": {}}, {"codeExecution": {}, **function(behavior="BLOCKING")}, {"urlContext": {}}]
    )
    assert [tool.name for tool in request.tools] == ["bash"]
    assert request.ignored == ("tools.behavior", "tools.codeExecution", "tools.googleSearch", "tools.urlContext")


@pytest.mark.parametrize(
    ("wish", "choice"),
    [
        ({}, "auto"),
        ({"mode": "AUTO"}, "auto"),
        ({"mode": "MODE_UNSPECIFIED"}, "auto"),
        ({"mode": "VALIDATED"}, "auto"),
        ({"mode": "NONE"}, "none"),
        ({"mode": "ANY"}, "required"),
        ({"mode": "ANY", "allowedFunctionNames": ["a", "b"]}, "required"),
        ({"mode": "ANY", "allowedFunctionNames": ["b"]}, "b"),
    ],
)
def test_the_use_of_functions_may_be_forced(wish: object, choice: str) -> None:
    request = parsed(tools=[function("a"), function("b")], toolConfig={"functionCallingConfig": wish})
    assert request.tool_choice == choice


def test_sampling_is_read() -> None:
    request = config(
        temperature=0.5, topP=0.9, topK=40, maxOutputTokens=99.0, stopSequences=["END"], seed=7, presencePenalty=0.1,
        frequencyPenalty=0.2, candidateCount=1, responseModalities=["TEXT"], thinkingConfig={"thinkingBudget": 9},
    )  # fmt: skip
    assert request.sampling == Sampling(
        temperature=0.5, top_p=0.9, top_k=40, max_tokens=99, stop=("END",), seed=7, presence_penalty=0.1,
        frequency_penalty=0.2,
    )  # fmt: skip
    assert request.ignored == ("generationConfig.thinkingConfig.thinkingBudget",)


def test_a_schema_of_the_answer_is_read() -> None:
    json_type = "application/json"
    assert config().output_schema == ""
    assert config(responseMimeType=json_type).output_schema == "{}"
    assert config(responseMimeType=json_type, responseSchema={"type": "ARRAY"}).output_schema == '{"type": "array"}'
    for name in ("responseJsonSchema", "_responseJsonSchema"):
        assert config(**{"responseMimeType": json_type, name: {"type": "X"}}).output_schema == '{"type": "X"}'


def test_null_and_empty_say_nothing() -> None:
    nothing = {
        "generationConfig": {
            "x": None,
            "thinkingConfig": None,
            "logprobs": 0,
            "speechConfig": {},
            "responseSchema": None,
        },
        "toolConfig": {"retrievalConfig": None, "functionCallingConfig": None},
        "tools": None,
        "safetySettings": None,
        "cachedContent": "",
    }
    assert parsed(**nothing) == parsed()


def test_thoughts_are_shown_to_who_asks() -> None:
    for wish, shown in (({}, False), ({"thinkingConfig": {"includeThoughts": True}}, True)):
        renderer = call_of(generationConfig=wish).renderer
        assert isinstance(renderer, GeminiRenderer)
        assert renderer.shows_thoughts is shown


def test_what_changes_no_meaning_is_noted() -> None:
    request = parsed(safetySettings=[{}], labels={"a": "b"}, generationConfig={"mediaResolution": "LOW"}, topLevel=None)
    assert request.ignored == ("generationConfig.mediaResolution", "labels", "safetySettings")


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"contents": []}, "contents", "at least one content"),
        ({"contents": "hi"}, "contents", "expected a list"),
        ({"contents": ["hi"]}, "contents[0]", "expected an object"),
        ({"contents": [{"role": "system", "parts": []}]}, "contents[0].role", '"user", "model" or "function"'),
        ({"contents": [USER, {"role": "model", "parts": [{"text": "x"}]}]}, "contents", "must end with a user turn"),
        ({"contents": [{"parts": [{"fileData": {}}]}]}, "contents[0].parts[0].fileData", "a user sends"),
        ({"contents": [{"parts": [{"hologram": 1}]}]}, "contents[0].parts[0]", '"hologram" is refused'),
        ({"contents": [{"parts": [{"text": "a", "inlineData": PNG}]}]}, "contents[0].parts[0]", "in one part"),
        ({"contents": [{"parts": [{"text": 1}]}]}, "contents[0].parts[0].text", "expected a string"),
        ({"contents": [{"parts": [called("f")]}]}, "contents[0].parts[0].functionCall", "a user sends"),
        (
            {"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": "AA=="}}]}]},
            "contents[0].parts[0].inlineData",
            "audio/wav",
        ),
        ({"contents": [{"parts": [{"functionResponse": {}}]}]}, "contents[0].parts[0].functionResponse.name", "name"),
        (
            {"contents": [USER, {"role": "model", "parts": [called("f", args=[1])]}, USER]},
            "contents[1].parts[0].functionCall.args",
            "an object",
        ),
        ({"cachedContent": "cachedContents/1"}, "cachedContent", "send all contents"),
        ({"generationConfig": {"candidateCount": 2}}, "generationConfig.candidateCount", "one request for each"),
        ({"generationConfig": {"responseLogprobs": True}}, "generationConfig.responseLogprobs", "stay in the record"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "generationConfig.responseModalities[0]", "TEXT"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType", "text/plain"),
        (
            {"generationConfig": {"responseSchema": {}}},
            "generationConfig.responseSchema",
            '"application/json" beside it',
        ),
        ({"systemInstruction": ["a", {"fileData": {}}]}, "systemInstruction[1].fileData", "are text"),
        ({"systemInstruction": 1}, "systemInstruction", "expected an object"),
        ({"generationConfig": {"temperature": -1}}, "generationConfig.temperature", "at least 0"),
        ({"generationConfig": {"stopSequences": [""]}}, "generationConfig.stopSequences[0]", "not empty"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name", "the name"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig.mode", "beside"),
        (
            {"tools": [function()], "toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["x"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames[0]",
            "was declared",
        ),
        (
            {
                "tools": [function("a"), function("b"), function("c")],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a", "b"]}},
            },
            "toolConfig.functionCallingConfig.allowedFunctionNames",
            "offer only those",
        ),
        ({"systemInstruction": {"parts": [{"inlineData": PNG}]}}, "systemInstruction.parts[0].inlineData", "are text"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], field: str, words: str) -> None:
    error = refused(**fields)
    assert (error.field, error.http_status) == (field, 400)
    assert words in str(error)


def test_a_count_has_the_prompt_of_its_call() -> None:
    body = {"contents": [USER], "systemInstruction": {"parts": [{"text": "s"}]}, "tools": [function()]}
    path = "/v1beta/models/gemini-x:countTokens"
    asked = parsed(**body)
    for sent in (body, {"generateContentRequest": {"model": "models/gemini-x", **body}}):
        count = GeminiDialect().parse(http(sent, path))
        assert isinstance(count, CountCall)
        assert (count.request.messages, count.request.tools) == (asked.messages, asked.tools)
        assert json.loads(count.answer(7).body) == {"totalTokens": 7}


@pytest.mark.parametrize(
    "prefix", ["/v1beta/", "/v1alpha/", "/v1/", "/", "//v1beta/", "/v1beta/projects/p/publishers/google/"]
)
@pytest.mark.parametrize(
    ("method", "streamed", "content_type"),
    [
        ("generateContent", False, "application/json"),
        ("streamGenerateContent", True, "application/json"),
        ("streamGenerateContent?alt=sse", True, "text/event-stream"),
    ],
)
def test_every_style_of_path_is_a_call(prefix: str, method: str, streamed: bool, content_type: str) -> None:
    request = http({"contents": [USER]}, f"{prefix}models/gemini-x:{method}")
    assert GeminiDialect().claims(request)
    call = GeminiDialect().parse(request)
    assert isinstance(call, ParsedCall)
    assert (call.stream, call.request.model) == (streamed, "gemini-x")
    assert call.content_type == content_type or not streamed


def test_probes_are_answered_quietly() -> None:
    key = {"x_goog_api_key": "k"}
    for verb, path in (("HEAD", "/"), ("GET", "/v1beta/models"), ("GET", "/v1beta/models/x"), ("GET", "/")):
        request = http(None, path, verb, **key)
        assert GeminiDialect().claims(request)
        answer = GeminiDialect().parse(request)
        assert isinstance(answer, HttpAnswer)
        assert answer.status == 200
    one = GeminiDialect().parse(http(None, "/v1beta/models/x", "GET"))
    assert isinstance(one, HttpAnswer)
    assert json.loads(one.body)["name"] == "models/x"


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/v1beta/models/x:generateContent", 405),
        ("POST", "/v1beta/models/x:embedContent", 404),
        ("POST", "/v1beta/cachedContents", 404),
        ("GET", "/v1beta/files", 404),
    ],
)
def test_other_methods_are_named(verb: str, path: str, status: int) -> None:
    assert GeminiDialect().claims(http(None, path, verb))
    with pytest.raises(DialectError, match="generateContent") as caught:
        GeminiDialect().parse(http({}, path, verb))
    assert caught.value.http_status == status


def test_the_key_is_taken_from_the_header_the_query_or_a_bearer() -> None:
    dialect = GeminiDialect()
    assert dialect.key(http(x_goog_api_key="k1")) == "k1"
    assert dialect.key(http(path=f"{GENERATE}?key=k2")) == "k2"
    assert dialect.key(http(authorization="Bearer k3")) == "k3"
    assert dialect.key(http()) == ""


def test_no_other_dialect_claims_its_requests() -> None:
    mine = [
        http(None, GENERATE),
        http(None, "/v1beta/models", "GET"),
        http(None, "/v1/models", "GET", x_goog_api_key="k"),
    ]
    theirs = [
        http(None, "/v1/chat/completions"),
        http(None, "/v1/messages"),
        http(None, "/v1/responses"),
        http(None, "/v1/models", "GET", authorization="Bearer k"),
        http(None, "/v1/models", "GET", x_api_key="k", anthropic_version="1"),
    ]
    for request in mine:
        assert GeminiDialect().claims(request)
        assert not ChatDialect().claims(request)
        assert not MessagesDialect().claims(request)
    assert not any(GeminiDialect().claims(request) for request in theirs)


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (DialectError("temperature: wrong", field="temperature"), 400, "INVALID_ARGUMENT"),
        (AccessError("no key"), 401, "UNAUTHENTICATED"),
        (EngineAborted("gone"), 503, "UNAVAILABLE"),
        (OpenForgeError("broken"), 500, "INTERNAL"),
    ],
)
def test_errors_are_googles(error: OpenForgeError, status: int, word: str) -> None:
    answer = GeminiDialect().failure(error)
    body = json.loads(answer.body)["error"]
    assert (answer.status, body["code"], body["status"], body["message"]) == (status, status, word, str(error))
    fields = [violation["field"] for detail in body["details"] for violation in detail.get("fieldViolations", ())]
    assert fields == (["temperature"] if status == 400 else [])


def test_a_full_context_is_said_in_the_words_of_the_api() -> None:
    error = AssemblyError(
        "full", code="context_length_exceeded", context_full=ContextFull(prompt_tokens=123, context_length=100)
    )
    body = json.loads(GeminiDialect().failure(error).body)["error"]
    assert body["message"] == "The input token count (123) exceeds the maximum number of tokens allowed (100)."
