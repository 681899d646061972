"""Responses bodies: what they mean, and which one error each wrong one gets."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from openforgerl.dialects.base import CountCall, HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.chat import ChatDialect
from openforgerl.dialects.marks import signature_of
from openforgerl.dialects.messages import MessagesDialect
from openforgerl.dialects.responses import ResponsesDialect
from openforgerl.dialects.responses_request import ResponsesRequest, read_request
from openforgerl.errors import AccessError, AssemblyError, DialectError, EngineAborted, OpenForgeError
from openforgerl.records import (
    CallFinished,
    CallStarted,
    Finish,
    ImageRef,
    Message,
    ModelRequest,
    Role,
    Sampling,
    ToolCall,
    Usage,
)
from pictures import PIXEL

USER = {"type": "message", "role": "user", "content": "hi"}
BASH = {
    "type": "function",
    "name": "bash",
    "description": "Run.",
    "strict": False,
    "parameters": {"type": "object"},
}
CALL = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"b": 1.0}'}
PNG = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
DIGEST = hashlib.sha256(PIXEL).hexdigest()


def http(body: object = None, path: str = "/v1/responses", method: str = "POST", **headers: str) -> HttpRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest(method=method, path=path, query={}, headers=names, body=raw)


def call_of(**fields: object) -> ResponsesRequest:
    return read_request(json.dumps({"input": "hi", **fields}).encode())


def parsed(**fields: object) -> ModelRequest:
    return call_of(**fields).request


def refused(**fields: object) -> DialectError:
    with pytest.raises(DialectError) as caught:
        parsed(**fields)
    return caught.value


def read(*items: object) -> tuple[Message, ...]:
    return parsed(input=list(items)).messages


def noted(*items: object) -> tuple[str, ...]:
    return parsed(input=list(items)).ignored


def offered(*tools: object, **fields: object) -> list[dict[str, Any]]:
    return [json.loads(tool.definition) for tool in parsed(tools=list(tools), **fields).tools]


def said(text: str, kind: str = "input_text") -> dict[str, object]:
    return {"type": kind, "text": text}


def answer(text: str) -> dict[str, object]:
    return {"type": "message", "role": "assistant", "content": [said(text, "output_text")]}


def reasoning(text: str = "", call: str = "", **fields: object) -> dict[str, object]:
    content = [said(text, "reasoning_text")] if text else []
    signature = signature_of(call) if call else None
    return {"type": "reasoning", "summary": [], "content": content, "encrypted_content": signature, **fields}


def output(call_id: str, given: object = "out", kind: str = "function_call") -> dict[str, object]:
    return {"type": f"{kind}_output", "call_id": call_id, "output": given}


def test_a_conversation_becomes_messages() -> None:
    request = parsed(
        instructions="be brief",
        input=[
            {"type": "message", "role": "developer", "content": [said("one"), said("two")]},
            {"role": "system", "content": "three"},
            {"role": "user", "content": "hi"},
            reasoning("hm", "call-1"),
            answer("I look."),
            CALL,
            output("c1"),
            answer("done"),
            USER,
        ],
    )
    call = ToolCall(id="c1", name="bash", arguments='{"b": 1.0}')
    assert request.messages == (
        Message(role=Role.SYSTEM, text="be brief"),
        Message(role=Role.DEVELOPER, text="one\ntwo"),
        Message(role=Role.SYSTEM, text="three"),
        Message(role=Role.USER, text="hi"),
        Message(
            role=Role.ASSISTANT, text="I look.", reasoning="hm", reasoning_mark="call-1", tool_calls=(call,)
        ),
        Message(role=Role.TOOL, text="out", tool_call_id="c1"),
        Message(role=Role.ASSISTANT, text="done"),
        Message(role=Role.USER, text="hi"),
    )  # fmt: skip
    assert request.ignored == ()


def test_a_string_is_a_user_message() -> None:
    assert parsed(input="hi") == parsed(input=[USER])
    assert parsed(instructions="", input="hi") == parsed(instructions=None, input="hi")


@pytest.mark.parametrize("given", [None, "", []])
def test_there_is_no_call_without_input(given: object) -> None:
    assert refused(input=given).field == "input"


def test_empty_forms_of_content_are_the_same() -> None:
    forms: list[object] = [None, "", [], [said("")], [{"type": "input_text", "text": None}]]
    assert {read({"role": "user", "content": form}) for form in forms} == {(Message(role=Role.USER),)}
    assert {read(USER, {"role": "assistant", "content": form}, USER)[1] for form in forms} == {
        Message(role=Role.ASSISTANT)
    }


def test_a_message_begins_where_the_order_goes_back() -> None:
    found = read(USER, answer("a"), CALL, answer("b"), reasoning("x"), answer("c"), reasoning("y"), CALL, CALL, USER)
    assert [(each.reasoning, each.text, len(each.tool_calls)) for each in found[1:-1]] == [
        ("", "a", 1), ("", "b", 0), ("x", "c", 0), ("y", "", 2),
    ]  # fmt: skip


def test_two_texts_are_two_messages() -> None:
    assert [each.text for each in read(USER, answer("a"), answer("b"))[1:]] == ["a", "b"]


def test_reasoning_of_two_calls_is_of_two_messages() -> None:
    found = read(USER, reasoning("a", "a"), reasoning("b", "b"), reasoning("c", "b"), CALL)
    assert [(each.reasoning, each.reasoning_mark) for each in found[1:]] == [("a", "a"), ("bc", "b")]


@pytest.mark.parametrize("content", [None, [], "absent"])
def test_reasoning_without_its_text_is_its_mark(content: object) -> None:
    sent = reasoning("", "call-1", content=content)
    if content == "absent":
        del sent["content"]
    (message,) = read(USER, sent, CALL)[1:]
    assert (message.reasoning, message.reasoning_mark, len(message.tool_calls)) == ("", "call-1", 1)


def test_a_summary_stands_for_the_reasoning_where_there_is_no_other_text() -> None:
    summary = [said("one", "summary_text"), said("two", "summary_text")]
    assert read(USER, reasoning("", "c", summary=summary))[1].reasoning == "one\ntwo"
    assert read(USER, reasoning("whole", "c", summary=summary))[1].reasoning == "whole"


def test_foreign_reasoning_is_noted_and_its_text_is_read() -> None:
    foreign = reasoning("", summary=[said("hm", "summary_text")], encrypted_content="gAAAA")
    request = parsed(input=[USER, foreign, {**foreign, "summary": []}, answer("a")])
    assert request.messages[1:] == (Message(role=Role.ASSISTANT, reasoning="hm", text="a"),)
    assert request.ignored == ("input.encrypted_content",)


def test_arguments_are_kept_as_they_were_sent() -> None:
    calls = read(USER, {**CALL, "arguments": '{"b":1.0,  "a": 1e3}'}, {**CALL, "call_id": None, "id": "fc_1"})
    assert [call.arguments for call in calls[1].tool_calls] == ['{"b":1.0,  "a": 1e3}', '{"b": 1.0}']
    assert calls[1].tool_calls[1].id == "fc_1"
    raw = b'{"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {"b": 1.0, "a": 1e3}}]}'
    assert read_request(raw).request.messages[0].tool_calls[0].arguments == '{"b": 1.0, "a": 1e3}'


def test_a_call_of_a_namespace_has_the_name_that_the_model_knows() -> None:
    named = [{**CALL, "namespace": name} for name in ("crm", "mcp__crm__", None, "")]
    assert [call.name for call in read(USER, *named)[1].tool_calls] == [
        "crm__bash", "mcp__crm__bash", "bash", "bash",
    ]  # fmt: skip


def test_freeform_calls_are_calls_with_one_argument() -> None:
    sent = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": '*** "x"\n', "status": "completed"}
    request = parsed(input=[USER, sent, {**sent, "input": None}, output("c1", "ok", "custom_tool_call")])
    assert [call.arguments for call in request.messages[1].tool_calls] == [
        '{"input": "*** \\"x\\"\\n"}', '{"input": ""}',
    ]  # fmt: skip
    assert request.messages[2] == Message(role=Role.TOOL, text="ok", tool_call_id="c1")
    assert request.ignored == ()


@pytest.mark.parametrize(
    ("sent", "name", "arguments"),
    [
        (
            {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}, "user": None}},
            "local_shell",
            {"command": ["ls"]},
        ),
        (
            {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {"A": "b"}}},
            "local_shell",
            {"command": ["ls"], "env": {"A": "b"}},
        ),
        ({"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": 5}}, "shell", None),
        ({"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}}, "apply_patch", None),
        ({"type": "computer_call", "actions": [{"type": "wait"}]}, "computer", {"actions": [{"type": "wait"}]}),
        ({"type": "computer_call", "action": {"type": "wait"}}, "computer", {"action": {"type": "wait"}}),
        ({"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}}, "tool_search", None),
        ({"type": "tool_search_call"}, "tool_search", {}),
    ],
)
def test_client_side_calls_are_calls(sent: dict[str, Any], name: str, arguments: object) -> None:
    request = parsed(input=[USER, {**sent, "id": "i1", "call_id": "c1", "status": "completed"}])
    (call,) = request.messages[1].tool_calls
    inner = next((sent[key] for key in ("action", "operation", "arguments") if key in sent), {})
    assert (call.id, call.name) == ("c1", name)
    assert json.loads(call.arguments) == (inner if arguments is None else arguments)
    assert request.ignored == ()


def test_outputs_are_texts_and_images_in_their_order() -> None:
    parts = [said("ab"), {"type": "input_image", "image_url": PNG, "detail": "high"}, said("c")]
    request = parsed(input=[USER, CALL, output("c1", parts), {"role": "user", "content": [*parts[1:]]}])
    assert request.messages[2:] == (
        Message(
            role=Role.TOOL,
            tool_call_id="c1",
            text="abc",
            images=(ImageRef(sha256=DIGEST, media_type="image/png", at=2),),
        ),
        Message(role=Role.USER, text="c", images=(ImageRef(sha256=DIGEST, media_type="image/png", at=0),)),
    )
    assert request.images == {DIGEST: PIXEL}
    assert request.ignored == ("input.content.detail",)


@pytest.mark.parametrize(
    ("sent", "text", "is_error"),
    [
        (output("c1", None), "", False),
        (output("c1", {"ok": 1.0}), '{"ok": 1.0}', False),
        (output("c1", "out", "local_shell_call"), "out", False),
        (
            output("c1", [{"stdout": "a\n", "stderr": "e", "outcome": {"type": "exit", "exit_code": 1}}], "shell_call"),
            "a\n\ne\n[exit code 1]",
            False,
        ),
        (output("c1", [{"stdout": "", "outcome": {"type": "timeout"}}], "shell_call"), "[timed out]", False),
        ({**output("c1", "no such file", "apply_patch_call"), "status": "failed"}, "no such file", True),
        ({**output("c1", None, "apply_patch_call"), "status": "completed"}, "completed", False),
    ],
)
def test_outputs_of_client_side_tools_are_what_the_tool_said(
    sent: dict[str, object], text: str, is_error: bool
) -> None:
    message = read(USER, CALL, sent)[-1]
    assert message == Message(role=Role.TOOL, text=text, tool_call_id="c1", is_error=is_error)


def test_a_screenshot_is_an_image() -> None:
    screen = {"type": "computer_screenshot", "image_url": PNG}
    message = read(USER, output("c1", screen, "computer_call"))[-1]
    assert (message.role, message.text, len(message.images)) == (Role.TOOL, "", 1)


def test_server_side_items_in_a_history_are_text_and_noted() -> None:
    items = [
        {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}},
        {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "t", "input_schema": {}}]},
        {"type": "file_search_call", "id": "f", "results": [{"filename": "a.md", "text": "found"}]},
        {"type": "code_interpreter_call", "code": "1+1", "outputs": [{"type": "logs", "logs": "2"}]},
        {"type": "mcp_call", "name": "t", "output": "given"},
        {"type": "mcp_approval_response", "approve": True, "approval_request_id": "a"},
    ]
    request = parsed(input=[USER, *items, answer("so")])
    assert [message.text for message in request.messages[1:]] == ["a.md\nfound", "1+1\n2", "given", "so"]
    assert request.ignored == tuple(sorted(f"input.{each['type']}" for each in items))


def test_items_of_other_agents_and_updates_of_settings() -> None:
    request = parsed(
        input=[
            {"type": "agent_message", "author": "/main", "recipient": "/main/a", "content": [said("go")]},
            {"type": "configuration_update", "reasoning": {"effort": "low"}},
        ]
    )
    assert request.messages == (Message(role=Role.USER, text="go"),)
    assert request.ignored == ("input.author", "input.configuration_update", "input.recipient")


def test_members_that_say_nothing_are_not_noted() -> None:
    empty = {"name": None, "recipient": [], "extra": {}, "id": "i", "status": "completed", "phase": "commentary"}
    assert noted({**USER, **empty}, {**answer("a"), **empty}, {**CALL, "caller": None}, output("c1")) == ()
    assert noted({**USER, "name": "n"}, {**CALL, "caller": {"type": "direct"}}) == ("input.caller", "input.name")


@pytest.mark.parametrize(
    ("sent", "way_out"),
    [
        ({"type": "item_reference", "id": "x"}, "send the item itself"),
        ({"type": "compaction", "encrypted_content": "x"}, "send the summary"),
        ({"type": "compaction_trigger"}, "ask for a summary"),
        ({"type": "never_heard_of"}, "leave it out"),
        ({"type": "configuration_update", "text": {"format": {"type": "json_schema"}}}, "in the body"),
        ({"role": "tool", "content": "x"}, "one of system, developer, user, assistant"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "send the text as input_text"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "send the transcript"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "as a data URL"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "as a data URL"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "https://a/b.png"}]}, "is not fetched"),
        ({"role": "developer", "content": [{"type": "input_image", "image_url": PNG}]}, "holds no images"),
        ({"role": "user", "content": 5}, "a string or a list of parts"),
        ({"type": "function_call", "call_id": "c"}, "the name of the tool"),
        ({"type": "function_call", "name": "f"}, "the id of the tool call"),
        ({"type": "function_call_output", "output": "x"}, "the id of the tool call"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": 5}, "a string"),
        ({"type": "computer_call_output", "call_id": "c", "output": {"file_id": "f"}}, "as a data URL"),
        ("words", "an object"),
    ],
)
def test_wrong_items_are_named_with_a_way_out(sent: object, way_out: str) -> None:
    error = refused(input=[USER, sent])
    assert way_out in str(error)
    assert (error.field or "").startswith("input[1]")
    assert str(error).startswith(error.field or "?")


def test_functions_are_offered_as_they_were_sent() -> None:
    raw = b"""{"input": "hi", "tools": [{"type": "function", "name": "f", "description": "D", "strict": true,
        "parameters": {"properties": {"b": {"minimum": 1.0, "enum": null}, "a": {}}, "type": "object"}}]}"""
    request = read_request(raw).request
    assert request.tools[0].definition == (
        '{"name": "f", "description": "D", "parameters": {"properties": {"b": {"minimum": 1.0, "enum": null}, "a": {}},'
        ' "type": "object"}}'
    )
    assert request.ignored == ("tools.strict",)
    assert offered({"name": "f", "parameters": None, "strict": None, "description": None}) == [{"name": "f"}]


def test_a_freeform_tool_is_a_function_of_one_text_and_its_grammar_is_told() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
    custom = {"type": "custom", "name": "patch", "description": "Edit.", "format": grammar}
    (tool,) = offered(custom)
    assert tool["description"] == "Edit.\n\nThe input follows this lark grammar:\nstart: /a/"
    assert (list(tool["parameters"]["properties"]), tool["parameters"]["required"]) == (["input"], ["input"])
    assert parsed(tools=[custom]).ignored == ("tools.format",)
    assert offered({"type": "custom", "name": "say"})[0].keys() == {"name", "parameters"}


def test_tools_of_a_namespace_have_joined_names() -> None:
    space = {"type": "namespace", "name": "crm", "description": "CRM.", "tools": [BASH, {**BASH, "type": "custom"}]}
    space["tools"][1]["name"] = "note"  # type: ignore[index]
    call = call_of(tools=[BASH, space, {**space, "name": "mcp__x__"}])
    assert [tool.name for tool in call.request.tools] == [
        "bash", "crm__bash", "crm__note", "mcp__x__bash", "mcp__x__note",
    ]  # fmt: skip
    assert [(route.kind, route.namespace, route.name) for route in call.routes.values()][1:3] == [
        ("function", "crm", "bash"), ("custom", "crm", "note"),
    ]  # fmt: skip
    assert call.request.ignored == ("tools.namespace.description",)


def test_two_tools_with_one_name_are_refused() -> None:
    space = {"type": "namespace", "name": "a", "tools": [{**BASH, "name": "b"}]}
    assert "'a__b'" in str(refused(tools=[space, {**BASH, "name": "a__b"}]))
    assert len(offered(BASH, BASH)) == 2


def test_client_side_tools_are_offered_by_their_schema() -> None:
    kinds = ["local_shell", "shell", "apply_patch", "computer"]
    tools = offered(*[{"type": kind} for kind in kinds])
    assert [tool["name"] for tool in tools] == kinds
    assert all(tool["parameters"]["type"] == "object" and tool["description"] for tool in tools)
    preview = {"type": "computer_use_preview", "display_width": 80, "display_height": 60, "environment": "linux"}
    assert offered({"type": "shell", "environment": {"type": "local"}})[0]["name"] == "shell"
    (computer,) = offered(preview)
    assert computer["name"] == "computer"
    assert computer["description"].endswith("It is 80 x 60 pixels.")


def test_server_side_tools_are_left_out_and_noted() -> None:
    kinds = [
        "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp",
        "programmatic_tool_calling", "tool_search", "never_heard_of",
    ]  # fmt: skip
    hosted = {"type": "shell", "environment": {"type": "container_auto"}}
    request = parsed(tools=[*({"type": kind} for kind in kinds), hosted, BASH])
    assert [tool.name for tool in request.tools] == ["bash"]
    assert request.ignored == tuple(sorted(f"tools.{kind}" for kind in [*kinds, "shell"]))


SEARCH = {"type": "tool_search", "execution": "client", "description": "Find.", "parameters": {"type": "object"}}
LATER = {**BASH, "name": "later", "defer_loading": True}


def test_deferred_tools_are_told_where_a_search_found_them() -> None:
    found = {"type": "tool_search_output", "call_id": "s1", "execution": "client", "tools": [LATER]}
    call = call_of(tools=[SEARCH, BASH, LATER], input=[USER, {"type": "tool_search_call", "call_id": "s1"}, found])
    assert [tool.name for tool in call.request.tools] == ["tool_search", "bash"]
    assert call.request.messages[-1] == Message(
        role=Role.TOOL,
        tool_call_id="s1",
        text='<functions>\n<function>{"name": "later", "description": "Run.", "parameters": {"type": "object"}}'
        "</function>\n</functions>",
    )
    assert call.routes["later"].name == "later"


def test_deferred_tools_are_offered_at_once_where_nothing_can_find_them() -> None:
    assert [tool["name"] for tool in offered(BASH, LATER)] == ["bash", "later"]
    assert [tool["name"] for tool in offered({"type": "tool_search"}, LATER)] == ["later"]


def test_found_tools_of_a_namespace_are_called_by_it() -> None:
    space = {"type": "namespace", "name": "crm", "tools": [LATER]}
    found = {"type": "tool_search_output", "call_id": "s1", "tools": [space]}
    assert call_of(tools=[SEARCH], input=[USER, found]).routes["crm__later"].namespace == "crm"
    more = {"type": "additional_tools", "role": "developer", "tools": [space]}
    call = call_of(tools=[SEARCH], input=[USER, more])
    assert call.request.messages[-1].role is Role.DEVELOPER
    assert '"name": "crm__later"' in call.request.messages[-1].text
    assert "crm__later" in call.routes


def test_a_search_that_found_nothing_is_answered_all_the_same() -> None:
    found = {"type": "tool_search_output", "call_id": "s1", "status": "completed", "tools": []}
    assert read(USER, found)[-1] == Message(role=Role.TOOL, tool_call_id="s1", text="<functions>\n</functions>")
    assert read(USER, {"type": "additional_tools", "role": "developer", "tools": [{"type": "mcp"}]}) == read(USER)


def test_a_request_as_codex_sends_it_is_read_whole() -> None:
    """Shapes of 0.171: ids on every item, everything in messages, hosted and searching tools beside its own."""
    space = {"type": "namespace", "name": "multi_agent_v1", "description": "Agents.", "tools": [BASH]}
    patch = {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": {"type": "grammar"}}
    request = parsed(
        model="gpt-x",
        stream=True,
        input=[
            {"type": "message", "id": "msg_1", "role": "developer", "content": [said("You are an agent.")]},
            {"type": "message", "id": "msg_2", "role": "user", "content": [said("go")]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": signature_of("c")},
            {"type": "custom_tool_call", "id": "ctc_1", "status": "completed", "call_id": "p", "name": "apply_patch",
             "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "p", "output": "Exit code: 0"},
            {"type": "function_call", "id": "fc_1", "status": "completed", "name": "bash",
             "namespace": "multi_agent_v1", "arguments": "{}", "call_id": "f"},
            {"type": "function_call_output", "id": "fco_1", "call_id": "f", "output": [said("one"), said("two")]},
        ],
        tools=[BASH, patch, space, SEARCH, {"type": "web_search", "external_web_access": True}],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "medium", "summary": "auto"},
        text={"verbosity": "low"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="key",
        client_metadata={"turn_id": "changes with every turn"},
    )  # fmt: skip
    assert [message.role for message in request.messages] == [
        Role.DEVELOPER, Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.TOOL,
    ]  # fmt: skip
    assert (request.messages[2].reasoning_mark, request.messages[5].text) == ("c", "one\ntwo")
    assert [call.name for message in request.messages for call in message.tool_calls] == [
        "apply_patch", "multi_agent_v1__bash",
    ]  # fmt: skip
    assert [tool.name for tool in request.tools] == ["bash", "apply_patch", "multi_agent_v1__bash", "tool_search"]
    assert request.ignored == (
        "client_metadata", "prompt_cache_key", "reasoning.effort", "text.verbosity", "tools.format",
        "tools.namespace.description", "tools.web_search",
    )  # fmt: skip


@pytest.mark.parametrize("tools", [None, []])
def test_a_compacted_history_is_read_with_its_late_developer_message(tools: object) -> None:
    found = parsed(input=[USER, USER, {"role": "developer", "content": "d"}, USER], tools=tools, tool_choice="auto")
    assert [message.role for message in found.messages] == [Role.USER, Role.USER, Role.DEVELOPER, Role.USER]
    assert found.tools == ()


@pytest.mark.parametrize(
    ("choice", "meaning", "left"),
    [
        (None, "auto", 3),
        ("auto", "auto", 3),
        ("none", "none", 3),
        ("required", "required", 3),
        ({"type": "function", "name": "bash"}, "bash", 3),
        ({"type": "function", "name": "read", "namespace": "crm"}, "crm__read", 3),
        ({"type": "custom", "name": "patch"}, "patch", 3),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "bash"}]}, "auto", 1),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]}, "patch", 1),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "bash"}, {"type": "custom", "name": "patch"}, {"type": "mcp"}],
            },
            "required",
            2,
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, "auto", 0),
    ],
)
def test_tool_choices(choice: object, meaning: str, left: int) -> None:
    space = {"type": "namespace", "name": "crm", "tools": [{**BASH, "name": "read"}]}
    request = parsed(tools=[BASH, space, {"type": "custom", "name": "patch"}], tool_choice=choice)
    assert (request.tool_choice, len(request.tools)) == (meaning, left)


def test_a_tool_that_is_not_offered_now_is_called_as_it_was_defined() -> None:
    """The model has it in its history, and may call it all the same."""
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "bash"}]}
    assert (
        call_of(tools=[BASH, {"type": "custom", "name": "patch"}], tool_choice=allowed).routes["patch"].kind == "custom"
    )
    assert call_of(tools=[SEARCH, {**LATER, "type": "custom"}]).routes["later"].kind == "custom"


def test_a_choice_of_a_client_side_tool_is_its_name() -> None:
    tools = [{"type": "shell"}, {"type": "apply_patch"}, {"type": "computer"}]
    found = [parsed(tools=tools, tool_choice={"type": kind}) for kind in ("shell", "apply_patch", "computer_use")]
    assert [request.tool_choice for request in found] == ["shell", "apply_patch", "computer"]


@pytest.mark.parametrize(
    "choice",
    [
        "any",
        {"type": "web_search_preview"},
        {"type": "mcp", "server_label": "x"},
        {"type": "function", "name": "other"},
        {"type": "custom", "name": "bash"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        {"type": "allowed_tools", "mode": "sometimes", "tools": []},
        5,
    ],
)
def test_a_choice_of_what_cannot_be_called_is_refused(choice: object) -> None:
    assert str(refused(tools=[BASH], tool_choice=choice)).startswith("tool_choice")


def test_required_without_a_tool_is_refused() -> None:
    assert refused(tool_choice="required").field == "tool_choice"


def test_sampling_and_schema() -> None:
    schema = {"type": "json_schema", "name": "s", "strict": True, "schema": {"b": 1.5, "a": 2}}
    request = parsed(temperature=0.5, top_p=0.9, max_output_tokens=7, text={"format": schema}, top_logprobs=0)
    assert request.sampling == Sampling(temperature=0.5, top_p=0.9, max_tokens=7)
    assert request.output_schema == '{"b": 1.5, "a": 2}'
    assert parsed(text={"format": {"type": "json_object"}}).output_schema == '{"type": "object"}'
    assert parsed(text={"format": {"type": "text"}}).output_schema == parsed(text=None).output_schema == ""


def test_what_changes_no_meaning_is_noted() -> None:
    request = parsed(
        store=True,
        parallel_tool_calls=False,
        truncation="auto",
        reasoning={"effort": "high", "summary": "auto"},
        text={"verbosity": "low"},
        include=["reasoning.encrypted_content", "file_search_call.results"],
        prompt_cache_key="k",
        safety_identifier="s",
        service_tier="auto",
        metadata={"a": "b"},
        stream_options={"include_obfuscation": False},
        client_metadata={"x": 1},
        context_management=[{"type": "compaction"}],
        max_tool_calls=3,
        user="u",
    )
    assert request.ignored == (
        "client_metadata", "context_management", "include.file_search_call.results", "max_tool_calls", "metadata",
        "parallel_tool_calls", "prompt_cache_key", "reasoning.effort", "safety_identifier", "service_tier", "store",
        "text.verbosity", "truncation", "user",
    )  # fmt: skip
    quiet = {"store": False, "parallel_tool_calls": True, "truncation": "disabled", "metadata": {}, "background": False}
    assert parsed(**quiet, previous_response_id=None, include=[]).ignored == ()


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("previous_response_id", "resp_1", "send the whole conversation as `input`"),
        ("conversation", {"id": "c"}, "send the whole conversation as `input`"),
        ("prompt", {"id": "p"}, "send their text"),
        ("background", True, "leave it out"),
        ("top_logprobs", 3, "leave it out"),
        ("messages", [USER], "send `input`"),
        ("max_tokens", 3, "send `max_output_tokens`"),
        ("response_format", {"type": "text"}, "send `text.format`"),
        ("stop", ["x"], "leave it out"),
        ("include", ["message.output_text.logprobs"], "leave it out"),
        ("max_output_tokens", 0, "at least 1"),
        ("temperature", -1, "at least 0"),
        ("top_p", 2, "from 0 to 1"),
        ("instructions", 5, "a string"),
        ("instructions", [USER], "a string"),
        ("reasoning", "high", "an object"),
        ("text", {"format": {"type": "xml"}}, '"json_schema"'),
        ("tools", [{"type": "function"}], "the name of the tool"),
        ("tools", [{"type": "namespace", "tools": []}], "the name of the tool"),
        ("tools", [{"type": "function", "name": "f", "parameters": []}], "an object"),
        ("stream", "yes", "true or false"),
    ],
)
def test_wrong_fields_are_named_with_a_way_out(name: str, value: object, way_out: str) -> None:
    error = refused(**{name: value})
    assert way_out in str(error)
    assert (error.field or "").startswith(name)
    assert (error.http_status, str(error).startswith(name)) == (400, True)


def test_a_response_repeats_its_request() -> None:
    raw = b"""{"input": "hi", "instructions": "I", "temperature": 0.50, "tools": [{"type": "web_search"}],
        "metadata": {"a": "b"}, "tool_choice": "none", "max_output_tokens": 5, "store": true}"""
    call = ResponsesDialect().parse(http(raw))
    assert isinstance(call, ParsedCall)
    renderer = call.renderer
    renderer.chunk(CallStarted(call_id="a", model="m", created=5, prompt_tokens=3))
    renderer.chunk(CallFinished(finish=Finish.STOP, usage=Usage(prompt_tokens=3, sampled_tokens=1)))
    shown = json.loads(renderer.whole())
    assert {key: shown[key] for key in ("instructions", "temperature", "tool_choice", "metadata", "store")} == {
        "instructions": "I", "temperature": 0.5, "tool_choice": "none", "metadata": {"a": "b"}, "store": False,
    }  # fmt: skip
    assert (shown["tools"], shown["parallel_tool_calls"]) == ([{"type": "web_search"}], True)


def test_a_count_is_of_the_same_prompt() -> None:
    body = {"input": [USER], "tools": [BASH], "instructions": "I"}
    count = ResponsesDialect().parse(http(body, "/v1/responses/input_tokens"))
    call = ResponsesDialect().parse(http(body))
    assert isinstance(count, CountCall)
    assert isinstance(call, ParsedCall)
    assert count.request == call.request
    assert json.loads(count.answer(7).body) == {"object": "response.input_tokens", "input_tokens": 7}


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", "/v1/responses/compact", 404, "ask for a summary"),
        ("GET", "/v1/responses/resp_1", 404, "keeps no responses"),
        ("DELETE", "/v1/responses/resp_1", 404, "keeps no responses"),
        ("POST", "/responses/resp_1/cancel", 404, "keeps no responses"),
        ("GET", "/v1/responses", 405, "send POST"),
        ("GET", "/v1/responses/input_tokens", 405, "send POST"),
    ],
)
def test_paths_that_are_not_answered_say_so(method: str, path: str, status: int, words: str) -> None:
    with pytest.raises(DialectError, match=words) as caught:
        ResponsesDialect().parse(http({}, path, method))
    assert caught.value.http_status == status


def test_a_probe_is_answered_quietly() -> None:
    answer = ResponsesDialect().parse(http({}, method="HEAD"))
    assert isinstance(answer, HttpAnswer)
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    ("path", "headers", "claimed"),
    [
        ("/v1/responses", {}, "responses"),
        ("/responses", {}, "responses"),
        ("/v1/responses/", {}, "responses"),
        ("/v1/responses/input_tokens", {}, "responses"),
        ("/v1/responses/resp_1", {}, "responses"),
        ("/v1/responses", {"anthropic_version": "2023-06-01"}, "responses"),
        ("/v1/chat/completions", {}, "chat"),
        ("/v1/models", {}, "chat"),
        ("/v1/models/responses", {}, "chat"),
        ("/v1/messages", {}, "messages"),
        ("/v1/models", {"anthropic_version": "2023-06-01"}, "messages"),
        ("/v1/responsesx", {}, None),
    ],
)
def test_exactly_one_dialect_claims_a_request(path: str, headers: dict[str, str], claimed: str | None) -> None:
    spoken = (MessagesDialect(), ResponsesDialect(), ChatDialect())
    asked = http({}, path, **headers)
    assert [each.name for each in spoken if each.claims(asked)] == ([claimed] if claimed else [])


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer  k "}, "k"),
        ({"api_key": "k"}, "k"),
        ({"x_api_key": "k"}, "k"),
        ({"authorization": "Basic k"}, ""),
        ({}, ""),
    ],
)
def test_keys(headers: dict[str, str], key: str) -> None:
    assert ResponsesDialect().key(http({}, **headers)) == key


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (DialectError("input: no", field="input"), 400, "invalid_request_error", "invalid_request"),
        (AccessError("no"), 401, "authentication_error", "invalid_api_key"),
        (AccessError("no", http_status=403, code="calls_used_up"), 403, "permission_error", "calls_used_up"),
        (AccessError("no", http_status=429, code="busy"), 429, "rate_limit_error", "busy"),
        (
            AssemblyError("full", code="context_length_exceeded"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
        ),
        (EngineAborted("no"), 503, "server_error", "engine_aborted"),
        (OpenForgeError("no"), 500, "server_error", "internal_error"),
    ],
)
def test_errors_are_those_of_the_vendor(error: OpenForgeError, status: int, kind: str, code: str) -> None:
    found = ResponsesDialect().failure(error)
    body = json.loads(found.body)["error"]
    assert (found.status, body["type"], body["code"], body["message"]) == (status, kind, code, str(error))
    assert body["param"] == getattr(error, "field", None)


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    raw = b'{"input": [' + b'{"type": "message", "content": [' * 100_000
    with pytest.raises(DialectError):
        read_request(raw)
