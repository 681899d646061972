"""What a session keeps of its requests: digests that are those of each request alone, bodies within a budget."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from openforgerl.dialects.rereading import JsonMemory
from openforgerl.proxy.remembering import BodyBudget, Digests, digest_of
from openforgerl.records import Message, ModelRequest, Role, Sampling, ToolCall

TEXTS = ("a", "b", "ab", "")


def message(random: Random) -> Message:
    if random.random() < 0.5:
        return Message(role=Role.USER, text=random.choice(TEXTS))
    call = ToolCall(id=random.choice(TEXTS), name="f", arguments=random.choice(TEXTS))
    return Message(role=Role.ASSISTANT, text=random.choice(TEXTS), tool_calls=(call,) * random.randrange(2))


@settings(max_examples=80, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_digest_is_that_of_the_request_alone_whatever_came_before(random: Random) -> None:
    digests, messages = Digests(), [message(random)]
    seen: dict[str, ModelRequest] = {}
    for _ in range(15):
        if random.random() < 0.3:
            messages[random.randrange(len(messages))] = message(random)
        del messages[random.randrange(1, len(messages) + 1) :]
        messages += [message(random) for _ in range(random.randrange(4))]
        request = ModelRequest(messages=tuple(messages), sampling=Sampling(seed=random.randrange(2)))
        digest = digests.of(request)
        assert digest == digest_of(request)
        assert seen.setdefault(digest, request) == request
        assert digests.of(replace(request, ignored=("user",))) == digest


def body(name: str, size: int) -> bytes:
    return b'{"messages":[{"content":"%s"}]}' % name.encode().ljust(size, b"x")


def test_bodies_of_all_sessions_stay_within_the_budget_and_the_oldest_go_first() -> None:
    budget = BodyBudget(most_bytes=4000)
    memories = [JsonMemory() for _ in range(10)]
    for number, memory in enumerate(memories):
        memory.read(body(str(number), 900))
        budget.used(memory)
        assert budget.size == sum(each.size for each in memories) <= 4000
    assert [memory.size > 0 for memory in memories] == [False] * 6 + [True] * 4
    memories[0].read(body("again", 900))
    budget.used(memories[0])
    assert memories[0].size
    assert not memories[6].size
    budget.closed(memories[0])
    budget.closed(memories[0])
    assert budget.size == sum(each.size for each in memories[7:])


def test_a_body_beyond_the_budget_is_not_kept() -> None:
    budget, memory = BodyBudget(most_bytes=100), JsonMemory()
    memory.read(body("large", 900))
    budget.used(memory)
    assert memory.size == budget.size == 0
