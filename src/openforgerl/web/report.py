"""RUN/report.html: one file that needs nothing beside it. The run is only read, and may be live."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from openforgerl import __version__
from openforgerl.store.sqlite import Store
from openforgerl.web import figures, glossary
from openforgerl.web.charts import histogram
from openforgerl.web.evidence import read_config, read_sessions, said
from openforgerl.web.filters import FILTERS, finalize
from openforgerl.web.rollouts import RolloutData
from openforgerl.web.tally import Tally
from openforgerl.web.vocabulary import find_codec
from openforgerl.workflows.run_folder import Progress, RunFolder
from openforgerl.workflows.verify import MAX_GAP, Verdict, verify

_HERE = Path(__file__).parent
_LOG_BYTES = 6_000
"""Embedded of one agent's output, less where there are many."""
_LOG_BYTES_ALL = 8_000_000
_LEFTOVER_AFTER_S = 600.0


def write_report(run: RunFolder, *, model: Path | None = None) -> Path:
    """Make RUN/report.html anew, by rename. `model`: where the run's tokenizer may be, beside its checkpoints.

    Raises ConfigError where the folder holds no run, StoreError where its store cannot be read.
    """
    page = render(run, model)
    _remove_leftovers(run)
    temporary = run.report.with_name(f".{run.report.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(run.report)
    finally:
        temporary.unlink(missing_ok=True)
    return run.report


def _remove_leftovers(run: RunFolder) -> None:
    """Of writers that were killed."""
    for file in run.root.glob(f".{run.report.name}.*"):
        if time.time() - file.stat().st_mtime > _LEFTOVER_AFTER_S:
            file.unlink(missing_ok=True)


def render(run: RunFolder, model: Path | None = None) -> str:
    """The page."""
    progress = run.read_progress()
    config = read_config(run)
    with closing(Store.open(run.store, read_only=True)) as store:
        finished = _is_finished(progress, config)
        verdict = verify(store, settled_only=not finished)
        found = find_codec(_model_folders(run, config, model), _tokenizers(store))
        rollouts, tally = RolloutData(found.codec), Tally()
        log_bytes = min(_LOG_BYTES, _LOG_BYTES_ALL // max(1, len(store.sessions())))
        for seen in read_sessions(run, store, log_bytes=log_bytes):
            rollouts.add(seen)
            tally.add(seen)
    head = _head(run, config, model, progress, tally, finished)
    values = {**head, **_sections(progress, config, verdict, tally), **_assets(), "found": found}
    return _environment().get_template("report.html.jinja").render(values, rollouts=rollouts.packed())


def _is_finished(progress: Progress, config: Mapping[str, object]) -> bool:
    planned = said(config, "trainer", "grpo", "steps")
    return "after_rl" in progress.evaluations and (not isinstance(planned, int) or progress.grpo_steps >= planned)


def _tokenizers(store: Store) -> set[str]:
    """Of the first session that has calls; one run has one tokenizer."""
    for session in store.sessions():
        if calls := store.calls(session.session_id):
            return {call.tokenizer_hash for call in calls}
    return set()


def _model_folders(run: RunFolder, config: Mapping[str, object], model: Path | None) -> list[Path]:
    named = said(config, "model", "path")
    checkpoints = sorted((run.root / "checkpoints").glob("v*"), key=lambda folder: folder.name)
    return [*([Path(named)] if isinstance(named, str) else []), *([model] if model else []), *checkpoints]


def _head(
    run: RunFolder, config: Mapping[str, object], model: Path | None, progress: Progress, tally: Tally, finished: bool
) -> dict[str, object]:
    named = said(config, "model", "path")
    harness = said(config, "harness", "name") or ", ".join(tally.harnesses)
    return {
        "name": run.root.resolve().name,
        "harness": str(harness or "unknown"),
        "model": Path(named).name if isinstance(named, str) else model.name if model else "default model",
        "progress": progress,
        "finished": finished,
        "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(tally.started_at)) if tally.started_at else "",
        "seconds": sum(progress.seconds.values()),
        "version": __version__,
        "config": config,
    }


def _sections(progress: Progress, config: Mapping[str, object], verdict: Verdict, tally: Tally) -> dict[str, object]:
    planned = said(config, "trainer", "grpo", "steps")
    times = figures.times(progress)
    return {
        "heldout": figures.heldout(progress),
        "charts": figures.reward_charts(progress, planned if isinstance(planned, int) else 0),
        "planned": planned if isinstance(planned, int) else 0,
        "rl_steps": len(figures.rl_steps(progress)),
        "tasks": figures.tasks(progress),
        "endings": figures.counts(tally.endings, list(glossary.ENDED_BY)),
        "grades": figures.counts(tally.grades, ["reward", "ungraded", "grader_error", "none"]),
        "tally": tally,
        "ended_by": glossary.ENDED_BY,
        "verdict": verdict,
        "gate": MAX_GAP,
        "shares": figures.shares(verdict.tokens),
        "account": verdict.tokens,
        "bins": histogram(tally.gaps, MAX_GAP),
        "times": times,
        "time_parts": figures.time_parts(times),
        "time_table": figures.time_table(times),
        "longest": max((step.total for step in times), default=0.0),
        "counters": figures.counters(tally),
        "steps": figures.steps(progress),
    }


def _assets() -> dict[str, object]:
    """Our own files, and the hash by which the page's policy admits the script and no other."""
    names = ("unpack.js", "list.js", "rollout.js", "main.js")
    script = "\n".join((_HERE / "assets" / name).read_text(encoding="utf-8") for name in names)
    script = f'"use strict";\n{script}'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    css = (_HERE / "assets" / "report.css").read_text(encoding="utf-8")
    return {"script": Markup(script), "script_hash": digest, "css": Markup(css)}


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment
