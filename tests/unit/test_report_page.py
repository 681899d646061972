"""The page: safe whatever a rollout says, whole without anything beside it, and true to the run."""

import base64
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from openforgerl.errors import ConfigError
from openforgerl.records import Completion, EndedBy, Ending, Grade
from openforgerl.store.sqlite import Store
from openforgerl.web.report import render, write_report
from openforgerl.web.visible import visible
from openforgerl.workflows.run_folder import Progress
from recorded_calls import recorded
from report_world import TINY, Page, Recorded, evaluation, make_run, receipt, record

HOSTILE = (
    "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\u202egnp.exe\x1b[2J\u200b\udcff'\"&{{7*7}}"
)
ENCODABLE = HOSTILE.replace("\udcff", "")
URLS = {"src", "href", "action", "data", "xlink:href", "formaction", "srcset", "poster"}
SMALL = recorded(0, (1, 2, 3), (4, 5))


async def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Wherever a run may carry it: ids are checked on creation, all other text is free."""
    call = replace(SMALL, error=HOSTILE, completion=Completion.ERROR, counters={HOSTILE: 3}, stop_string=HOSTILE)
    hostile = Recorded(
        "s1", [call], ending=Ending(ended_by=EndedBy.INFRA, reason=HOSTILE), task_id=HOSTILE, use_reason=ENCODABLE,
        grade=Grade(kind="grader_error", reason=HOSTILE), labels={"phase": HOSTILE, "step": HOSTILE},
    )  # fmt: skip
    metrics = ({"name": "grpo 1", "reward": 0.5, "seconds": 2.0, f"{ENCODABLE}_s": 1.0},)
    progress = Progress(metrics=metrics, evaluations={"base": evaluation(0.5, 0, **{ENCODABLE: 0.5})})
    run = await make_run(tmp_path / "run", [hostile], progress, '[harness]\nname = "<b>\\u202e</b>"\n')
    (run.logs / "s1.log").write_bytes(HOSTILE.encode(errors="replace"))
    source = render(run)
    page = Page(source)
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert [script.get("type") for script in scripts] == ["application/octet-stream", None]
    assert not [
        tag for tag, attributes in page.tags if tag == "img" or any(name.startswith("on") for name in attributes)
    ]
    assert not set(source) & set("\u202e\u200b\x1b\udcff")
    assert "alert(1)" not in page.scripts[1]
    assert "{{7*7}}" in source.replace("&#39;", "'")
    assert "⟨U+202E⟩gnp.exe⟨U+001B⟩[2J⟨U+200B⟩⟨U+DCFF⟩" in page.text
    session = page.data()["sessions"][0]
    assert session["task"] == session["ended_reason"] == session["calls"][0]["error"] == HOSTILE


async def test_only_our_own_script_may_run(tmp_path: Path) -> None:
    page = Page(render(await make_run(tmp_path / "run", [Recorded("s1", [SMALL])])))
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in (policy or "")
    assert (policy or "").startswith("default-src 'none'")


async def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    page = Page(render(await make_run(tmp_path / "run", [Recorded("s1", [SMALL])])))
    links = [value or "" for tag, attributes in page.tags for name, value in attributes.items() if name in URLS]
    assert links
    assert [link for link in links if not link.startswith("#")] == []
    assert "url(" not in page.source
    assert "@import" not in page.source


async def test_a_run_without_a_single_session_has_a_page(tmp_path: Path) -> None:
    page = Page(render(await make_run(tmp_path / "run", [])))
    assert "No rollout has begun yet." in page.text
    assert page.data()["sessions"] == []


async def test_token_texts_come_from_the_recorded_tokenizer_only(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", [Recorded("s1", [SMALL])])
    unlike = Page(render(run, TINY))
    assert "shown as ids" in unlike.text
    assert set(unlike.data()["vocabulary"]["kinds"]) == {"id"}
    from openforgerl.tokens.codec import Codec

    same = replace(SMALL, tokenizer_hash=Codec.load(TINY).tokenizer_hash)
    known = Page(render(await make_run(tmp_path / "other", [Recorded("s1", [same])]), TINY))
    assert "shown as ids" not in known.text
    assert "id" not in known.data()["vocabulary"]["kinds"]


async def test_a_live_run_is_judged_by_its_committed_steps(tmp_path: Path) -> None:
    done = Recorded("s1", [SMALL])
    in_work = Recorded("s2", [SMALL], receipts=False, use_reason=None)
    run = await make_run(tmp_path / "run", [done], Progress(grpo_steps=1), "[trainer.grpo]\nsteps = 2\n")
    store = Store.open(run.store)
    await record(store, in_work)
    live = Page(render(run)).text
    await store.aclose()
    assert "verify holds." in live
    assert "1 session of steps that are not committed is left out." in live
    run.commit(Progress(grpo_steps=2, evaluations={"after_rl": evaluation(0.5, 2)}))
    finished = Page(render(run)).text
    assert "verify: 1 finding." in finished
    assert "row s2/0 has no receipt" in finished


async def test_a_gap_above_the_gate_is_a_finding(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", [Recorded("s1", [SMALL], receipts=False)])
    store = Store.open(run.store)
    await store.receipts([receipt("s1", 0, max_gap=3e-3)])
    await store.aclose()
    page = Page(render(run))
    assert "row s1/0: log-prob gap 3.00e-03 is above 1e-04" in page.text
    assert any("broken" in (attributes.get("class") or "") for tag, attributes in page.tags if tag == "div")


async def test_counters_of_calls_are_summed_over_the_run(tmp_path: Path) -> None:
    sessions = [Recorded(f"s{n}", [replace(SMALL, counters={"reencoded_turns": n})]) for n in (2, 3)]
    page = Page(render(await make_run(tmp_path / "run", sessions)))
    assert "5 reencoded_turns" in page.text
    assert "split_tokens" in page.text.partition("Counted, and 0:")[2]


async def test_what_sessions_counted_beside_their_calls_is_summed(tmp_path: Path) -> None:
    counted = {"calls": 9, "complete": 9, "reencoded_turns": 5, "retries_answered_again": 2, "output_bytes_dropped": 7}
    ending = Ending(ended_by=EndedBy.FINISHED, counters=counted)
    calls = [replace(SMALL, counters={"reencoded_turns": 1})]
    sessions = [Recorded(name, calls, ending=ending) for name in ("s2", "s3")]
    page = Page(render(await make_run(tmp_path / "run", sessions)))
    for line in ("4 retries_answered_again", "14 output_bytes_dropped", "2 reencoded_turns"):
        assert line in page.text
    assert "calls_exhausted" in page.text.partition("Counted, and 0:")[2]


async def test_held_out_rewards_are_shown_before_and_after(tmp_path: Path) -> None:
    evaluations = {
        "base": evaluation(0.25, 0, copy=0.25),
        "after_sft": evaluation(0.5, 6),
        "after_rl": evaluation(0.9, 9),
    }
    metrics = tuple({"name": f"grpo {n}", "reward": n / 10, "seconds": 1.0} for n in range(1, 4))
    page = Page(render(await make_run(tmp_path / "run", [], Progress(evaluations=evaluations, metrics=metrics))))
    assert "0.25 held-out reward, base" in page.text
    assert "0.90 held-out reward, after RL +0.40" in page.text
    charts = [attributes for tag, attributes in page.tags if attributes.get("class") == "dot"]
    assert len(charts) == 2 * len(metrics)


async def test_a_report_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", [Recorded("s1", [SMALL])])
    assert write_report(run) == run.report
    first = run.report.read_bytes()
    (run.root / "progress.json").write_text("{")
    with pytest.raises(ConfigError):
        write_report(run)
    assert run.report.read_bytes() == first
    assert {path.name for path in run.root.iterdir() if path.is_file()} == {
        "report.html", "progress.json", "metrics.jsonl", "config.resolved.toml",
    }  # fmt: skip


async def test_what_a_killed_writer_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", [])
    old, young = run.root / ".report.html.1.2", run.root / ".report.html.3.4"
    for file in (old, young):
        file.write_text("half a pa")
    os.utime(old, (1.0, 1.0))
    write_report(run)
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ASCII\n\tand ünïcode 漢字 🙂", "plain ASCII\n\tand ünïcode 漢字 🙂"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("a\u2066b\ufeff", "a⟨U+2066⟩b⟨U+FEFF⟩"),
        ("\x00\x7f\x9b\r", "⟨U+0000⟩⟨U+007F⟩⟨U+009B⟩⟨U+000D⟩"),
        ("hidden\U000e0041\u3164\ufe0f", "hidden⟨U+E0041⟩⟨U+3164⟩⟨U+FE0F⟩"),
        ("\ud800", "⟨U+D800⟩"),
    ],
)
def test_what_one_would_not_see_is_made_visible(text: str, expected: str) -> None:
    assert visible(text) == expected
