"""A conversation that grows is taken up again, and gives what a fresh assembler gives whatever became known since."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from openforgerl.records import Delivered, Message, MessagesDelta, ModelRequest, PromptDelta
from openforgerl.tokens.checkpoints import KEPT_MOST
from token_world import FULL, TokenWorld, answer, call, call_text, result, system, user

CUT = Delivered(state="prefix", count=3)


@pytest.fixture
def world() -> TokenWorld:
    return TokenWorld()


def asked(world: TokenWorld, *messages: Message) -> Any:
    """The prompt, which is the one of an assembler that sees the session for the first time."""
    request = ModelRequest(messages=messages, tools=())
    fresh = world.fresh()
    for recorded in world.calls:
        fresh.remember(recorded)
    prompt = world.assembler.assemble(request)
    assert prompt == fresh.assemble(request)
    return prompt


def grown(world: TokenWorld, turns: int) -> list[Message]:
    """A session of so many turns, the last one answered."""
    messages: list[Message] = [system("Sys."), user("Start")]
    for number in range(turns):
        messages += [world.ask(messages, f"Answer {number}.", tools=()), user(f"More {number}.")]
    return messages


def test_of_a_conversation_that_grows_only_what_is_new_is_looked_at(world: TokenWorld) -> None:
    messages = grown(world, 3)
    world.prompt(messages, ())
    messages += [answer("Not ours."), user("End")]
    looked_at: list[Message] = []
    read = world.assembler._recognition.read
    world.assembler._recognition.read = lambda run: looked_at.extend(run) or read(run)
    prompt = world.prompt(messages, ())
    assert looked_at == [answer("Not ours.")]
    assert prompt.counters == {"foreign_turns": 1}
    assert world.assembler.known(ModelRequest(messages=tuple(messages))) == len(messages) - 1


def test_a_changed_character_of_history_is_seen(world: TokenWorld) -> None:
    messages = grown(world, 3)
    asked(world, *messages)
    for place in range(len(messages)):
        changed = replace(messages[place], text=messages[place].text + "!")
        asked(world, *messages[:place], changed, *messages[place + 1 :])
    asked(world, *messages)


def test_an_answer_equal_to_a_foreign_message_is_taken_for_it_once_it_is_recorded(world: TokenWorld) -> None:
    history = [user("One"), answer("Foreign."), user("Two")]
    assert asked(world, *history).counters == {"foreign_turns": 1}
    world.ask([user("Elsewhere")], "Foreign.", tools=())
    assert asked(world, *history).counters == {}


def test_a_changed_message_counts_as_ours_once_an_answer_was_sampled_there(world: TokenWorld) -> None:
    history = [user("One"), answer("Foreign."), user("Two")]
    assert asked(world, *history).counters == {"foreign_turns": 1}
    world.ask([user("One")], "Another.", tools=())
    assert asked(world, *history).counters == {"reencoded_turns": 1}


def test_an_answer_that_was_cut_is_found_by_its_beginning_once_that_is_known(world: TokenWorld) -> None:
    world.ask([user("One")], "Foreign and more.", tools=(), delivered=FULL)
    history = [user("One"), answer("Foreign"), user("Two")]
    assert asked(world, *history).counters == {"reencoded_turns": 1}
    world.learn(0, CUT)
    assert asked(world, *history).counters["cut_turns"] == 1


def test_a_later_answer_that_was_cut_may_be_what_an_earlier_message_begins(world: TokenWorld) -> None:
    history = [user("One"), answer("Foreign"), user("Two")]
    asked(world, *history)
    world.ask([user("Elsewhere")], "Foreign and more.", tools=(), delivered=CUT)
    assert asked(world, *history).counters["cut_turns"] == 1


def test_an_answer_that_a_later_message_names_is_no_longer_taken_for_an_equal_one(world: TokenWorld) -> None:
    named = world.ask([user("One")], call_text())
    equal = answer("", call("toolu_1"))
    history = [user("New"), equal, result("toolu_1")]
    assert asked(world, *history).counters == {}
    assert asked(world, *history, named, result("x")).counters == {"foreign_turns": 1}


def test_an_answer_that_is_named_stays_so_for_what_follows(world: TokenWorld) -> None:
    named = world.ask([user("One")], call_text())
    changed = replace(named, tool_calls=(replace(named.tool_calls[0], arguments='{"command": "pwd"}'),))
    history = [user("New"), changed, result("x")]
    assert asked(world, *history).counters == {"reencoded_turns": 1}
    prompt = asked(world, *history, answer("", call("toolu_1")), result("y"))
    assert prompt.counters == {"reencoded_turns": 1, "foreign_turns": 1}


def test_equal_answers_stay_with_their_calls_while_more_of_them_come(world: TokenWorld) -> None:
    messages: list[Message] = [user("Start")]
    for number in range(5):
        messages += [world.ask(messages, "The same.", tools=()), user(f"More {number}")]
        prompt = asked(world, *messages)
        assert prompt.counters == ({"ambiguous_turns": number} if number else {})


def test_of_equal_calls_to_one_prompt_an_earlier_one_that_ends_later_is_preferred(world: TokenWorld) -> None:
    """Two calls at once: the second is recorded first."""
    said = world.ask([user("One")], "The same.", tools=())
    world.ask([user("One")], (*world.codec.encode("The same."), world.end), tools=())
    early, late = (
        replace(
            each,
            prompt=PromptDelta(parent=None, cut=0, new_ids=world.prompts[0]),
            messages=MessagesDelta(parent=None, cut=0, new=(user("One"),)),
        )
        for each in world.calls
    )
    world.calls[:] = (early, late)
    world.assembler = world.fresh()
    world.assembler.remember(late)
    history = (user("One"), said, user("Two"))
    request = ModelRequest(messages=history, tools=())
    before = world.assembler.assemble(request)
    world.assembler.remember(early)
    assert before.ids != world.assembler.assemble(request).ids == asked(world, *history).ids


def test_conversations_that_are_kept_are_few_and_each_is_kept_once(world: TokenWorld) -> None:
    for number in range(3 * KEPT_MOST):
        for turns in range(3):
            more = [message for turn in range(turns) for message in (answer("Yes."), user(f"More {turn}"))]
            world.prompt([user(f"Talk {number}"), answer("Go."), user("On"), *more], ())
    kept = world.assembler._checkpoints._kept
    assert len({each.messages[0] for each in kept}) == len(kept) == KEPT_MOST
