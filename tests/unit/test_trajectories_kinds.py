"""Kinds of calls, told from conversations as real harnesses hold them."""

from openforgerl.records import CallKind, Message, ToolSpec
from openforgerl.trajectories import kinds, rows
from recorded_calls import BASH, Conversation, assistant, result, system, user

AGENT = system("You are a coding agent.")
TOOLS = (BASH,)
TASK = user("Fix the bug in parser.py.")
MAIN, SUBAGENT, SUMMARY, SIDE = CallKind.MAIN, CallKind.SUBAGENT, CallKind.SUMMARY, CallKind.SIDE
SUMMARY_TEXT = "The agent listed the files, opened parser.py and found that the bug is an off-by-one in line 12."


def turn(number: int) -> tuple[Message, Message]:
    """An answer with a tool call, and its result."""
    return assistant("", (f"call{number}", "bash", f'{{"n": {number}}}')), result(f"call{number}", f"output {number}")


def kinds_in_order(conversation: Conversation) -> list[CallKind]:
    found = kinds(conversation.calls)
    return [found[call.call_id] for call in conversation.calls]


def test_a_plain_tool_conversation_is_main() -> None:
    talk = Conversation()
    history = [AGENT, TASK]
    for number in range(3):
        answer, output = turn(number)
        talk.ask(history, answer, tools=TOOLS)
        history += [answer, output]
    talk.ask(history, assistant("Done."), tools=TOOLS)
    assert kinds_in_order(talk) == [MAIN] * 4
    assert len(rows(talk.calls)) == 1


def test_a_harness_without_tools_is_main_throughout() -> None:
    talk = Conversation()
    history = [AGENT, TASK]
    for number in range(3):
        talk.ask(history, answer := assistant(f"ls {number}"))
        history += [answer, user(f"output {number}")]
    talk.ask([system("Another prompt"), user("title?")], assistant("Fixing"))
    assert kinds_in_order(talk) == [MAIN] * 4


def test_a_title_and_a_quota_probe_beside_the_first_turn_are_side_calls() -> None:
    talk = Conversation()
    answer, output = turn(0)
    talk.ask([user("quota")], assistant("I"))
    talk.ask([AGENT, TASK], answer, tools=TOOLS)
    talk.ask([system("Write a title."), TASK], assistant("Parser bug"))
    talk.ask([AGENT, TASK, answer, output], assistant("Done: Parser bug is fixed."), tools=TOOLS)
    assert kinds_in_order(talk) == [SIDE, MAIN, SIDE, MAIN]


def test_a_title_is_a_side_call_even_where_its_words_come_back() -> None:
    talk = Conversation()
    title, (answer, output) = assistant("Parser bug"), turn(0)
    talk.ask([system("Write a title."), TASK], title)
    talk.ask([AGENT, TASK], answer, tools=TOOLS)
    talk.ask([AGENT, TASK, answer, output, user("rename the window to: Parser bug")], title, tools=TOOLS)
    talk.ask(
        [AGENT, TASK, answer, output, user("rename the window to: Parser bug"), title, user("?")], answer, tools=TOOLS
    )
    assert kinds_in_order(talk)[0] is SIDE


def test_a_summary_with_the_turns_before_it_and_the_context_that_it_starts() -> None:
    talk = Conversation()
    answer, output = turn(0)
    after, more = turn(1)
    talk.ask([AGENT, TASK], answer, tools=TOOLS)
    talk.ask([AGENT, TASK, answer, output, user("Summarise.")], assistant(SUMMARY_TEXT))
    talk.ask([AGENT, user(f"Summary: {SUMMARY_TEXT}")], after, tools=TOOLS)
    talk.ask([AGENT, user(f"Summary: {SUMMARY_TEXT}"), after, more], assistant("Done."), tools=TOOLS)
    assert kinds_in_order(talk) == [MAIN, SUMMARY, MAIN, MAIN]
    assert len(rows(talk.calls)) == 3


def test_a_summary_of_a_conversation_that_is_shown_as_text() -> None:
    """pi: the turns are a user message, and the summary comes back inside the first message of the next context."""
    talk = Conversation()
    answer, output = turn(0)
    talk.ask([AGENT, TASK], answer, tools=TOOLS)
    talk.ask([system("Summarise conversations."), user("[Assistant]: bash(n=0) ...")], assistant(SUMMARY_TEXT))
    talk.ask([AGENT, user(f"<summary>{SUMMARY_TEXT}</summary>"), answer, output], assistant("Done."), tools=TOOLS)
    assert kinds_in_order(talk) == [MAIN, SUMMARY, MAIN]


def test_a_summary_that_comes_back_as_a_turn_behind_another_question() -> None:
    """OpenCode: the conversation is shown as text, and the next context begins with the summary as an answer."""
    talk = Conversation()
    answer, output = turn(0)
    talk.ask([AGENT, TASK], answer, tools=TOOLS)
    talk.ask([AGENT, user("The conversation: ... Summarise it.")], assistant(SUMMARY_TEXT))
    begun = [AGENT, user("What did we do so far?"), assistant(SUMMARY_TEXT), user("Go on.")]
    talk.ask(begun, answer, tools=TOOLS)
    talk.ask([*begun, answer, output], assistant("Done."), tools=TOOLS)
    assert kinds_in_order(talk) == [MAIN, SUMMARY, MAIN, MAIN]


def test_a_context_that_a_summary_starts_is_main_whatever_its_system_prompt() -> None:
    talk = Conversation()
    answer, output = turn(0)
    talk.ask([AGENT, TASK], answer, tools=TOOLS)
    talk.ask([AGENT, TASK, answer, output, user("Summarise.")], assistant(SUMMARY_TEXT))
    talk.ask([system("You continue."), user(SUMMARY_TEXT)], assistant("Done."), tools=TOOLS)
    assert kinds_in_order(talk) == [MAIN, SUMMARY, MAIN]


def test_a_compaction_that_keeps_no_turn_stays_main() -> None:
    talk = Conversation()
    talk.ask([AGENT, TASK], turn(0)[0], tools=TOOLS)
    talk.ask([AGENT, user("Go on with line 12.")], assistant("Done."), tools=TOOLS)
    assert kinds_in_order(talk) == [MAIN, MAIN]


def test_a_subagent_is_told_by_its_own_system_prompt_or_tools_through_all_its_turns() -> None:
    talk = Conversation()
    task, output = turn(0)
    inner, inner_output = turn(1)
    reader = (ToolSpec(name="read", definition="{}"),)
    talk.ask([AGENT, TASK], task, tools=TOOLS)
    talk.ask([system("You search."), user("Find it.")], inner, tools=TOOLS)
    talk.ask([system("You search."), user("Find it."), inner, inner_output], assistant("Line 12."), tools=TOOLS)
    talk.ask([AGENT, user("Read it.")], assistant("Read."), tools=reader)
    talk.ask([AGENT, TASK, task, output], assistant("Done."), tools=TOOLS)
    assert kinds_in_order(talk) == [MAIN, SUBAGENT, SUBAGENT, SUBAGENT, MAIN]


def test_a_label_names_a_subagent_that_looks_like_the_main_agent() -> None:
    talk = Conversation()
    label = {"X-Claude-Code-Agent-Id": "a1"}
    inner, inner_output = turn(1)
    talk.ask([AGENT, user("Find it.")], inner, tools=TOOLS, labels=label)
    talk.ask([AGENT, TASK], turn(0)[0], tools=TOOLS)
    talk.ask([AGENT, user("Find it."), inner, inner_output], assistant("Line 12."), tools=TOOLS, labels=label)
    assert kinds_in_order(talk) == [SUBAGENT, MAIN, SUBAGENT]


def test_a_history_that_is_rebuilt_on_every_call_stays_main() -> None:
    """OpenClaw: the last message moves to the end, so no call extends another."""
    talk = Conversation()
    note = user("[internal context]")
    history = [AGENT, TASK]
    for number in range(3):
        answer, output = turn(number)
        talk.ask([*history, note], answer, tools=TOOLS)
        history += [answer, output]
    assert kinds_in_order(talk) == [MAIN] * 3
    assert len(rows(talk.calls)) == 3


def test_new_tools_in_mid_conversation_do_not_make_a_subagent() -> None:
    talk = Conversation()
    answer, output = turn(0)
    talk.ask([AGENT, TASK], answer, tools=TOOLS)
    talk.ask([AGENT, TASK, answer, output], assistant("Done."), tools=(*TOOLS, ToolSpec(name="more", definition="{}")))
    assert kinds_in_order(talk) == [MAIN, MAIN]


def test_turns_without_ids_are_found_in_their_own_context_first() -> None:
    """Gemini: no call ids; main agent and sub-agent call the same tool."""
    talk = Conversation()
    main, inner = assistant("", ("", "bash", "{1}")), assistant("", ("", "bash", "{2}"))
    other = (*TOOLS, ToolSpec(name="more", definition="{}"))
    talk.ask([AGENT, TASK], main, tools=TOOLS)
    talk.ask([system("You search."), user("Find it.")], inner, tools=other)
    talk.ask([system("You search."), user("Find it!"), inner, result("", "1")], assistant("Line 12."), tools=other)
    talk.ask([AGENT, user("Fix the bug!"), main, result("", "2")], assistant("Done."), tools=TOOLS)
    assert kinds_in_order(talk) == [MAIN, SUBAGENT, SUBAGENT, MAIN]


def test_a_first_turn_without_tools_that_is_continued_is_no_side_call() -> None:
    talk = Conversation()
    plan = assistant("Plan: look, then fix.")
    talk.ask([AGENT, TASK], plan)
    talk.ask([AGENT, TASK, plan, user("Go.")], turn(0)[0], tools=TOOLS)
    assert kinds_in_order(talk) == [MAIN, MAIN]


def test_a_conversation_without_tools_beside_one_with_tools_is_a_subagent_not_summaries() -> None:
    talk = Conversation()
    first, second = assistant("What about line 12?"), assistant("It is line 12.")
    talk.ask([AGENT, TASK], turn(0)[0], tools=TOOLS)
    talk.ask([system("You think."), TASK], first)
    talk.ask([system("You think."), TASK, first, user("Yes?")], second)
    assert kinds_in_order(talk) == [MAIN, SUBAGENT, SUBAGENT]
