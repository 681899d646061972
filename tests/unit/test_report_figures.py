"""Numbers of the page's charts and token texts, apart from any page."""

import math
from collections import Counter

import pytest

from openforgerl.records import MaskReason
from openforgerl.tokens.codec import Codec
from openforgerl.web import glossary
from openforgerl.web.charts import histogram, nice_ticks, parts, reward_chart, running_means, step_ticks
from openforgerl.web.figures import counts, shares
from openforgerl.web.filters import change, count, duration, number, percent
from openforgerl.web.vocabulary import TokenKind, token_text
from openforgerl.workflows.account import TokenAccount
from report_world import TINY


def test_a_histogram_counts_every_gap_once_and_marks_those_beyond_the_gate() -> None:
    gaps = [0.0, 1e-7, 2e-5, 2e-5, 9.9e-5, 1.1e-4, 0.5]
    bins = histogram(gaps, 1e-4)
    assert sum(bin.count for bin in bins) == len(gaps)
    assert sum(bin.count for bin in bins if bin.broken) == 2
    assert [bin.label for bin in bins if bin.gate] == ["1e-4"]
    assert max(bin.share for bin in bins) == 1.0


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (0, 0.03), (-5, 120), (0, 1e-9)])
def test_ticks_hold_the_values_and_are_few(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 7


@pytest.mark.parametrize("last", [1, 2, 7, 20, 150, 4000])
def test_step_numbers_fit_beside_each_other(last: int) -> None:
    ticks = step_ticks(last, 400)
    assert ticks[0] == 1
    assert ticks[-1] <= last
    assert len(ticks) <= 15
    assert ticks == sorted(set(ticks))


def test_a_reward_curve_rises_where_rewards_do() -> None:
    chart = reward_chart(800, [("base", 0.1)], [(n, n / 20, "") for n in range(1, 21)], [("after RL", 1.0)], 20)
    assert chart.smooth
    heights = [dot.y for dot in chart.dots]
    assert heights == sorted(heights, reverse=True)
    assert chart.left < chart.split[0] < chart.dots[0].x < chart.dots[-1].x < chart.split[1] < chart.right
    assert chart.heldout[1].y == chart.top < chart.heldout[0].y < chart.bottom


def test_a_running_mean_looks_back_only() -> None:
    assert running_means([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]


def test_parts_lie_end_to_end() -> None:
    found = parts({"a": 1.0, "nothing": 0.0, "b": 3.0})
    assert [(part.name, part.start, part.share) for part in found] == [("a", 0.0, 0.25), ("b", 0.25, 0.75)]


def test_shares_of_the_account_are_of_all_that_was_sampled() -> None:
    account = TokenAccount(sampled=100, trained=40, masked={"late": 10}, unused={"evaluation": 30, "open": 20})
    found = shares(account)
    assert [(share.group, share.name, share.part.value) for share in found] == [
        ("trained", "trained", 40), ("masked", "late", 10), ("unused", "evaluation", 30), ("unused", "open", 20),
    ]  # fmt: skip
    assert math.isclose(sum(share.part.share for share in found), 1.0)


def test_phases_are_summed_only_where_there_are_several() -> None:
    table = counts({"sft": Counter(finished=2), "grpo": Counter(infra=1, odd=1)}, ["finished", "infra"])
    assert table.columns == ("rollouts", "finished", "infra", "odd")
    assert table.rows == (("sft", (2, 2, 0, 0)), ("grpo", (2, 0, 1, 1)), ("all", (4, 2, 1, 1)))
    assert len(counts({"sft": Counter(finished=2)}, []).rows) == 1


def test_every_mask_reason_has_its_sentence() -> None:
    assert set(glossary.MASKED) == {str(reason) for reason in MaskReason}


def test_numbers_are_printed_for_people() -> None:
    assert count(8225) == "8\u202f225"
    assert (change(0.194), change(-0.5)) == ("+0.19", "\u22120.50")
    assert (percent(0.4), percent(0.00001), percent(0)) == ("40.0%", "<0.1%", "0.0%")
    assert (duration(4.25), duration(83), duration(7260)) == ("4.2 s", "1 min 23 s", "2 h 1 min")
    assert [number(value) for value in (None, 3.0, 0.012345, math.inf)] == ["–", "3", "0.0123", "inf"]


def test_a_token_is_shown_by_itself() -> None:
    codec = Codec.load(TINY)
    start = codec.specials["<|im_start|>"]
    assert token_text(codec, start) == ("<|im_start|>", TokenKind.SPECIAL)
    assert token_text(codec, 10**6) == ("1000000", TokenKind.ID)
    assert token_text(None, 7) == ("7", TokenKind.ID)
    for text in (" ", "\n", "a"):
        ids = codec.encode(text)
        assert "".join(token_text(codec, token_id)[0] for token_id in ids) == text


def test_a_part_of_a_character_is_shown_as_its_bytes() -> None:
    codec = Codec.load(TINY)
    ids = codec.encode("🙂")
    shown = [token_text(codec, token_id) for token_id in ids]
    assert len(ids) > 1
    assert {kind for _, kind in shown} == {TokenKind.BYTES}
    assert "".join(text for text, _ in shown) == "\\xf0\\x9f\\x99\\x82"
