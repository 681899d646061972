"""Continuous batching step by step: who joins when, what is computed, and what it costs in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from openforgerl.engines.local_batch import Batch, Row
from openforgerl.engines.local_config import LocalEngineConfig
from openforgerl.engines.local_model import PolicyModel
from openforgerl.engines.local_sampling import row_sampling
from openforgerl.errors import EngineError
from openforgerl.records import EngineFinish, GenerateChunk, GenerateRequest, Sampling
from tiny_models import load_plain, reference_logprobs, write_tiny_model


class Sink:
    """Keeps what a call was given."""

    def __init__(self) -> None:
        self.cancelled = False
        self.items: list[GenerateChunk | EngineError] = []

    def put(self, item: GenerateChunk | EngineError) -> None:
        self.items.append(item)

    @property
    def chunks(self) -> list[GenerateChunk]:
        return [item for item in self.items if isinstance(item, GenerateChunk)]

    @property
    def ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.ids]

    @property
    def logprobs(self) -> list[float]:
        return [value for chunk in self.chunks for value in chunk.logprobs]

    @property
    def finish(self) -> EngineFinish | None:
        return self.chunks[-1].finish if self.chunks else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("policy"))


class Bench:
    """A batch driven by hand, and the plain model beside it."""

    def __init__(self, folder: Path, **config: int) -> None:
        self.config = LocalEngineConfig(**{"max_batch": 4, **config})
        self.model = PolicyModel.load(folder, dtype=torch.float32, slots=self.config.max_batch)
        self.batch = Batch(self.model, self.config, policy_version=0)
        self.plain = load_plain(folder)
        self.asked: list[tuple[GenerateRequest, Sink]] = []

    def ask(self, prompt: list[int], answer: int, *, stop_ids: tuple[int, ...] = (), temperature: float = 1.0) -> Sink:
        sampling = Sampling(temperature=temperature, seed=len(self.asked))
        request = GenerateRequest(
            request_id=f"r{len(self.asked)}", session_id="s", prompt_ids=tuple(prompt), sampling=sampling,
            stop_ids=stop_ids,
        )  # fmt: skip
        sink = Sink()
        self.batch.waiting.append(Row(request, row_sampling(request), answer, sink))
        self.asked.append((request, sink))
        return sink

    def step(self, times: int = 1) -> None:
        with torch.inference_mode():
            for _ in range(times):
                self.batch.step()

    def run(self, most: int = 600) -> None:
        for _ in range(most):
            if not (self.batch.rows or self.batch.waiting):
                return
            self.step()
        raise AssertionError("the batch does not end")

    def waiting(self) -> list[str]:
        return [row.request.request_id for row in self.batch.waiting]

    def check_logprobs(self) -> None:
        for request, sink in self.asked:
            expected = reference_logprobs(self.plain, request.prompt_ids, sink.ids, request.sampling.temperature or 1.0)
            assert sink.logprobs == pytest.approx(expected, abs=1e-4)


def ids(start: int, count: int) -> list[int]:
    return [3 + (start * 31 + at * 7) % 500 for at in range(count)]


def test_a_late_call_joins_at_the_next_step(folder: Path) -> None:
    bench = Bench(folder)
    early = bench.ask(ids(1, 20), 30)
    bench.step(5)
    late = bench.ask(ids(2, 10), 30)
    bench.step()
    assert (len(early.ids), len(late.ids)) == (6, 1)
    bench.run()
    bench.check_logprobs()


def test_rows_that_leave_in_any_order_disturb_no_other(folder: Path) -> None:
    bench = Bench(folder, max_batch=5)
    lengths = [3, 17, 1, 9, 5, 2, 12, 1, 7, 4, 20, 6]
    sinks = [bench.ask(ids(at, 5 + at * 3), length) for at, length in enumerate(lengths)]
    bench.run()
    assert [len(sink.ids) for sink in sinks] == lengths
    bench.check_logprobs()


def test_more_calls_than_slots_wait_first_come_first_served(folder: Path) -> None:
    bench = Bench(folder, max_batch=2)
    sinks = [bench.ask(ids(at, 10), 4) for at in range(5)]
    bench.step()
    assert [len(sink.ids) for sink in sinks] == [1, 1, 0, 0, 0]
    bench.step(4)
    assert [len(sink.ids) for sink in sinks] == [4, 4, 1, 1, 0]
    bench.run()
    assert bench.batch.counters["finished_calls"] == 5


def test_a_long_prompt_is_computed_in_parts_while_others_go_on(folder: Path) -> None:
    bench = Bench(folder, prefill_tokens=16)
    short = bench.ask(ids(1, 10), 30)
    bench.step(2)
    long = bench.ask(ids(2, 100), 10)
    bench.step(6)
    assert (len(short.ids), len(long.ids)) == (8, 0)
    bench.step()
    assert (len(short.ids), len(long.ids)) == (9, 1)
    bench.run()
    bench.check_logprobs()


def test_prompts_that_share_a_prefix_are_computed_once(folder: Path) -> None:
    bench, shared = Bench(folder, max_batch=8), ids(1, 120)
    for at in range(8):
        bench.ask([*shared, *ids(10 + at, 5)], 6)
    bench.run()
    assert bench.batch.counters["prefilled_tokens"] == 125 + 7 * 5
    assert bench.batch.counters["reused_tokens"] == 7 * 120
    bench.check_logprobs()


def test_equal_prompts_are_computed_once(folder: Path) -> None:
    bench, prompt = Bench(folder), ids(1, 50)
    for _ in range(4):
        bench.ask(prompt, 6)
    bench.step(2)
    assert [len(sink.ids) for _, sink in bench.asked] == [2, 1, 1, 1]
    bench.run()
    assert bench.batch.counters["prefilled_tokens"] == 50
    bench.check_logprobs()


def test_the_next_turn_of_a_conversation_computes_its_new_ids_only(folder: Path) -> None:
    bench, prompt = Bench(folder), ids(1, 60)
    first = bench.ask(prompt, 12)
    bench.run()
    bench.ask([*prompt, *first.ids, *ids(5, 9)], 8)
    bench.run()
    # The last sampled id was never an input.
    assert bench.batch.counters["prefilled_tokens"] == 60 + 1 + 9
    bench.check_logprobs()


def test_a_short_common_beginning_is_not_worth_waiting_for(folder: Path) -> None:
    bench = Bench(folder)
    sinks = [bench.ask([5, 6, 7, *ids(at, 30)], 5) for at in range(3)]
    bench.step()
    assert [len(sink.ids) for sink in sinks] == [1, 1, 1]


@pytest.mark.parametrize("where", ["decoding", "computing its prompt", "waiting"])
def test_a_cancelled_call_frees_its_place_within_one_step(folder: Path, where: str) -> None:
    bench = Bench(folder, max_batch=2, prefill_tokens=16)
    kept = bench.ask(ids(1, 10), 60)
    bench.step()
    if where == "waiting":
        bench.ask(ids(4, 5), 60)
    gone = bench.ask(ids(2, 10 if where == "decoding" else 200), 60)
    bench.step(3)
    before = len(gone.items)
    gone.cancelled = True
    bench.step()
    assert len(bench.batch.rows) + len(bench.batch.waiting) == (2 if where == "waiting" else 1)
    assert len(gone.items) == before
    assert bench.batch.counters["cancelled_calls"] == 1
    bench.run()
    assert len(kept.ids) == 60
    bench.check_logprobs()


def test_any_stop_id_ends_an_answer_and_is_in_it(folder: Path) -> None:
    bench = Bench(folder)
    prompt = ids(1, 10)
    probe = bench.ask(prompt, 8, temperature=0.0)
    bench.run()
    ending = bench.ask(prompt, 8, temperature=0.0, stop_ids=(511, probe.ids[3]))
    bench.run()
    assert ending.ids == probe.ids[: probe.ids.index(probe.ids[3]) + 1]
    assert (probe.finish, ending.finish) == (EngineFinish.LENGTH, EngineFinish.STOP)


def test_memory_stays_within_the_limit_and_calls_that_lose_their_slot_go_on_exactly(folder: Path) -> None:
    bench = Bench(folder, max_batch=4, max_tokens_in_cache=300)
    sinks = [bench.ask(ids(at, 40), 60) for at in range(6)]
    for _ in range(600):
        if not (bench.batch.rows or bench.batch.waiting):
            break
        bench.step()
        assert bench.batch.positions_in_memory <= 300
    assert [len(sink.ids) for sink in sinks] == [60] * 6
    assert bench.batch.counters["preempted_calls"] > 0
    bench.check_logprobs()


def test_a_call_that_lost_its_slot_comes_before_calls_that_never_had_one(folder: Path) -> None:
    bench = Bench(folder, max_batch=2, max_tokens_in_cache=150)
    for at in range(4):
        bench.ask(ids(at, 40), 60)
    while not bench.batch.counters["preempted_calls"]:
        bench.step()
    assert bench.waiting() == ["r1", "r2", "r3"]


def test_one_call_may_fill_the_whole_memory(folder: Path) -> None:
    bench = Bench(folder, max_tokens_in_cache=100)
    bench.ask(ids(1, 60), 5)
    bench.run()
    longest = bench.ask(ids(2, 40), 60)
    bench.run()
    assert len(longest.ids) == 60
    bench.check_logprobs()


def test_new_weights_forget_all_prefixes_and_calls_in_flight_go_on_with_them(folder: Path, tmp_path: Path) -> None:
    bench, prompt = Bench(folder), ids(1, 40)
    call = bench.ask(prompt, 20)
    bench.step(8)
    other = load_plain(write_tiny_model(tmp_path, seed=1))
    bench.model.set_state(other.state_dict())
    bench.batch.renew(1)
    again = bench.ask(prompt, 5)
    bench.run()
    assert [chunk.policy_version for chunk in call.chunks] == [0] * 8 + [1] * 12
    old = reference_logprobs(bench.plain, prompt, call.ids)
    new = reference_logprobs(other, prompt, call.ids)
    assert call.logprobs == pytest.approx([*old[:8], *new[8:]], abs=1e-4)
    assert again.logprobs == pytest.approx(reference_logprobs(other, prompt, again.ids), abs=1e-4)


def test_calls_in_flight_keep_their_order_over_new_weights(folder: Path) -> None:
    bench = Bench(folder, max_batch=3)
    for at in range(5):
        bench.ask(ids(at, 10), 20)
    bench.step(2)
    bench.batch.renew(1)
    assert bench.waiting() == ["r0", "r1", "r2", "r3", "r4"]
    bench.run()
    bench.check_logprobs()


def test_weights_that_give_no_numbers_fail_the_calls_loudly(folder: Path) -> None:
    bench = Bench(folder)
    broken = {name: tensor * float("nan") for name, tensor in bench.plain.state_dict().items()}
    bench.model.set_state(broken)
    sinks = [bench.ask(ids(at, 10), 5) for at in range(3)]
    bench.run()
    assert all(isinstance(sink.items[-1], EngineError) and not sink.ids for sink in sinks)
