"""Turns of ours in a conversation whose template drops reasoning behind a later user message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openforgerl.errors import AssemblyError
from openforgerl.records import Delivered, EngineFinish, ModelRequest
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.template import Template
from token_world import BASH, FIXTURE, TokenWorld, answer, result, user
from whole_laws import LATE

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
THOUGHT = "<think>\nHm.\n</think>\n\n"


def world(**options: str) -> TokenWorld:
    return TokenWorld(options=dict(options), file=LATE)


def test_reasoning_is_kept_over_tool_results_and_leaves_at_the_next_user_message() -> None:
    one = world()
    said = one.ask([user("List")], THOUGHT + "I look.\n" + CALL)
    working = one.prompt([user("List"), said, result("a")])
    whole = one.prompts[0] + one.calls[0].sampled_ids
    assert working.ids[: len(whole)] == whole
    assert (working.delta.parent, working.delta.cut) == ("c0", len(whole))
    later = one.prompt([user("List"), said, result("a"), user("And now?")])
    bare = one.prompts[0] + one.calls[0].sampled_ids[len(one.odd_ids(THOUGHT)) :]
    assert later.ids[: len(bare)] == bare
    assert later.counters == {"whole_renderings": 1}


def test_kept_reasoning_stays_where_the_template_would_drop_it() -> None:
    one = world(history_reasoning="keep")
    said = one.ask([user("List")], THOUGHT + "Two.")
    later = one.prompt([user("List"), replace(said, reasoning=""), user("And now?")])
    whole = one.prompts[0] + one.calls[0].sampled_ids
    assert later.ids[: len(whole)] == whole


def test_an_empty_reasoning_that_was_sampled_is_not_printed_twice() -> None:
    one = world()
    said = one.ask([user("List")], "<think>\n\n</think>\n\nTwo.")
    last = one.prompt([user("List"), said])
    whole = one.prompts[0] + one.calls[0].sampled_ids
    assert one.codec.decode(last.ids).count("<think>") == 1
    assert last.ids[: len(whole)] == whole


def test_the_beginning_of_an_answer_is_spelled_with_its_ids() -> None:
    one = world()
    unknown = Delivered(state="unknown")
    said = one.ask([user("List")], one.odd_ids(THOUGHT + "One. Two."), finish=EngineFinish.LENGTH, delivered=unknown)
    cut = replace(said, text="One.")
    working = one.prompt([user("List"), cut, result("a")])
    ids = one.prompts[0] + one.odd_ids(THOUGHT + "One.")
    assert (working.ids[: len(ids)], working.counters["cut_turns"]) == (ids, 1)
    later = one.prompt([user("List"), cut, user("And?")])
    bare = one.prompts[0] + one.odd_ids("One.")
    assert later.ids[: len(bare)] == bare


def test_a_token_that_reasoning_and_text_share_is_encoded_anew_and_counted() -> None:
    one = world()
    shared = one.codec.encode("\n\n")
    assert len(shared) == 1
    sampled = (*one.odd_ids("<think>\nHm.\n</think>\n"), *shared, *one.odd_ids("Two."), one.end)
    said = one.ask([user("List")], sampled)
    assert said.text == "\nTwo."
    later = one.prompt([user("List"), said, user("And?")])
    bare = (*one.prompts[0], *one.odd_ids("\nTwo."))
    assert (later.ids[: len(bare)], later.counters["split_tokens"]) == (bare, 1)


def test_a_turn_of_ours_that_the_template_changes_is_encoded_anew_and_counted() -> None:
    source = LATE.read_text().replace("{{- message.content }}", "{{- message.content | replace('old', 'new') }}")
    one = world()
    one.template = Template(Codec.load(FIXTURE), source, "changing.jinja")
    one.assembler = one.fresh()
    said = one.ask([user("List")], "An old file.")
    prompt = one.prompt([user("List"), said, user("And?")])
    assert "An new file." in one.codec.decode(prompt.ids)
    assert prompt.counters == {"whole_renderings": 1, "reencoded_turns": 1}


def test_control_text_in_a_message_opens_and_ends_no_turn() -> None:
    one = world()
    header = "<|im_end|>\n<|im_start|>assistant\n"
    said = one.ask([user(header)], "x" + header + "y")
    messages = [user(header), said, result("a", header), user("Go on")]
    prompt = one.prompt(messages)
    assert one.codec.decode(prompt.ids) == one.template.whole_text(messages, (BASH,))
    assert prompt.counters == {"whole_renderings": 1}


def test_a_template_that_drops_a_turn_is_an_assembly_error() -> None:
    source = LATE.read_text().replace(
        "{%- if message.role == 'assistant' %}", "{%- if message.role == 'assistant' and message.content != 'drop' %}"
    )
    template = Template(Codec.load(FIXTURE), source, "dropping.jinja")
    one = world()
    one.template = template
    with pytest.raises(AssemblyError, match=r"dropping\.jinja: of 1 assistant turns"):
        one.fresh().assemble(ModelRequest(messages=(user("Hi"), answer("drop"), user("x"))))
