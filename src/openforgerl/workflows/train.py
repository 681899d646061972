"""The loop: held-out reward of the base, SFT warm start, held-out, GRPO, held-out. Every step is one commit.

A crash at any moment loses the step in work, no finished rollout of it: a resumed run takes up the rollouts of the
same policy version, and never counts one twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openforgerl.engines.local import LocalEngine
from openforgerl.errors import TrainerError
from openforgerl.records import EndedBy, Session, Task, TokenRow, Update, Use
from openforgerl.rollout.attempt import RolloutRequest
from openforgerl.rollout.scheduler import Scheduler
from openforgerl.runtimes.base import Runtime
from openforgerl.store.sqlite import Store
from openforgerl.trainers.credit import Credit, CreditConfig, Rollout, assign
from openforgerl.trainers.local import LocalTrainer
from openforgerl.trajectories import rows as rows_of
from openforgerl.workflows.batches import demonstrations, draw, family, groups
from openforgerl.workflows.clock import StepClock
from openforgerl.workflows.config import EvaluationConfig, GrpoConfig, SftConfig
from openforgerl.workflows.listener import Listener
from openforgerl.workflows.resume import Attempts
from openforgerl.workflows.run_folder import Evaluation, Progress, RunFolder, UseRecord

Metrics = dict[str, float | int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The built parts and the plan of one run."""

    run: RunFolder
    store: Store
    student: Scheduler
    """Rollouts of the policy in training."""
    teacher: Scheduler
    """Rollouts of the scripted teacher, through the same harness."""
    engine: LocalEngine
    trainer: LocalTrainer
    train_tasks: Sequence[Task]
    heldout_tasks: Sequence[Task]
    sft: SftConfig
    grpo: GrpoConfig
    credit: CreditConfig
    evaluation: EvaluationConfig
    seed: int
    listener: Listener
    runtime: Runtime


class Training:
    """A run in work: the loop and how far it is."""

    def __init__(self, loop: Loop, progress: Progress) -> None:
        self._loop = loop
        self.progress = progress
        self._attempts = Attempts(loop.store)

    async def run(self) -> Progress:
        """Everything that is not committed yet. Raises TrainerError where a step has nothing to train on."""
        await self._evaluate("base")
        if self.progress.sft_steps < self._loop.sft.steps:
            demonstrated = await self._demonstrate()
            for step in range(self.progress.sft_steps, self._loop.sft.steps):
                await self._sft_step(step, demonstrated)
        await self._evaluate("after_sft")
        for step in range(self.progress.grpo_steps, self._loop.grpo.steps):
            await self._grpo_step(step)
        await self._evaluate("after_rl")
        return self.progress

    # --- phases ---

    async def _evaluate(self, name: str) -> None:
        if name in self.progress.evaluations:
            return
        began, loop = time.monotonic(), self._loop
        ident = f"eval-{name.replace('_', '-')}"
        labels = self._labels("evaluation", len(self.progress.evaluations), split="heldout")
        requests = groups(loop.heldout_tasks, loop.evaluation.samples_per_task, name=ident, labels=labels)
        sessions = await self._collect(f"held-out, {name.replace('_', ' ')}", loop.student, requests)
        others = self._others(labels, sessions)
        await self._give_receipts([row for session in (*sessions, *others) for row in self._rows(session)])
        result = _evaluation(sessions, self.progress.policy_version)
        step = len(self.progress.evaluations)
        uses = [_use(session, "evaluation", step, "evaluation") for session in sessions]
        uses += [_use(session, "evaluation", step, _why_other(session)) for session in others]
        evaluations = {**self.progress.evaluations, name: result}
        await self._commit({"evaluations": evaluations}, uses, f"eval_{name}", began)
        told = {"reward": result.mean_reward, "graded": result.graded, "rollouts": result.rollouts}
        loop.listener.step(f"heldout {name}", told)

    async def _demonstrate(self) -> list[Session]:
        loop = self._loop
        labels = self._labels("sft", 0, split="train", version=0)
        requests = demonstrations(loop.train_tasks, loop.sft.families, labels)
        sessions = await self._collect("demonstrations", loop.teacher, requests)
        solved = [session for session in sessions if session.grade and session.grade.reward == 1.0]
        if not solved:
            raise TrainerError(f"the scripted teacher solved no task: nothing to warm-start on{_example(sessions)}")
        return solved

    async def _sft_step(self, step: int, demonstrated: Sequence[Session]) -> None:
        began, loop = time.monotonic(), self._loop
        order = self._drawn(demonstrated, step)
        rows = [row for session in order for row in self._rows(session)]
        update = await asyncio.to_thread(loop.trainer.sft_step, rows)
        uses = [_use(session, "sft", step, "") for session in order]
        if step + 1 == loop.sft.steps:
            uses += self._never_shown(demonstrated)
        await self._advance({"sft_steps": step + 1}, uses, f"sft {step + 1}", update, {}, began)

    def _drawn(self, demonstrated: Sequence[Session], step: int) -> tuple[Session, ...]:
        return draw(demonstrated, self._loop.sft.rollouts_per_step, seed=self._loop.seed, step=step)

    def _never_shown(self, demonstrated: Sequence[Session]) -> list[Use]:
        """Uses of the teacher's rollouts that no step of the warm start drew, or could draw."""
        steps = self._loop.sft.steps
        shown = {session.session_id for step in range(steps) for session in self._drawn(demonstrated, step)}
        sessions = [
            s for s in self._loop.store.sessions() if s.labels.get("phase") == "sft" and s.session_id not in shown
        ]
        solved = {session.session_id for session in demonstrated}
        return [_use(s, "sft", steps - 1, "not_drawn" if s.session_id in solved else _why_other(s)) for s in sessions]

    async def _grpo_step(self, step: int) -> None:
        began, loop = time.monotonic(), self._loop
        clock = StepClock(loop.engine)
        tasks = draw(loop.train_tasks, loop.grpo.groups_per_step, seed=loop.seed, step=step, kind=family)
        labels = self._labels("grpo", step, split="train")
        requests = groups(tasks, loop.grpo.group_size, name=f"grpo{step:04d}", labels=labels)
        with clock.part("rollout"):
            sessions = await self._collect(f"grpo {step + 1}/{loop.grpo.steps}", loop.student, requests)
        rollouts = [Rollout(session=session, rows=self._rows(session)) for session in sessions]
        credit = assign(rollouts, loop.credit)
        uses = [_use(session, "grpo", step, credit.unused.get(session.session_id, "")) for session in sessions]
        others = self._others(labels, sessions)
        uses += [_use(session, "grpo", step, _why_other(session)) for session in others]
        rows = [row for each in rollouts for row in each.rows] + [row for each in others for row in self._rows(each)]
        with clock.part("receipts"):
            await self._give_receipts(_without(rows, credit))
        with clock.part("update"):
            update = await self._policy_update(credit) if credit.trained else None
        told: Metrics = {**_rewards(sessions), **credit.counts, **clock.read()}
        await self._advance({"grpo_steps": step + 1}, uses, f"grpo {step + 1}", update, told, began)

    async def _policy_update(self, credit: Credit) -> Update:
        update, receipts = await asyncio.to_thread(self._loop.trainer.policy_step, credit.batch)
        await self._loop.store.receipts(receipts)
        return update

    # --- shared by the phases ---

    async def _collect(self, title: str, who: Scheduler, requests: Sequence[RolloutRequest]) -> list[Session]:
        """Finished rollouts of an interrupted step are taken up; the others run."""
        found, missing = self._attempts.split(requests)
        self._loop.listener.phase(title, len(missing))
        fresh = await who.collect(missing, self._loop.listener.attempt)
        by_rollout = {session.rollout_id: session for session in (*found, *fresh)}
        return [by_rollout[request.rollout_id] for request in requests]

    def _rows(self, session: Session) -> tuple[TokenRow, ...]:
        return rows_of(self._loop.store.calls(session.session_id))

    def _others(self, labels: Mapping[str, str], sessions: Sequence[Session]) -> list[Session]:
        """Attempts of the same step that were retried, or that a crash cut off."""
        counted = {session.session_id for session in sessions}
        same = [session for session in self._loop.store.sessions() if dict(session.labels) == labels]
        return [session for session in same if session.session_id not in counted]

    async def _give_receipts(self, rows: Sequence[TokenRow]) -> None:
        """For rows that no update will look at, while their policy lives."""
        sampled = [row for row in rows if row.logprob_kind == "sampled"]
        await self._loop.store.receipts(await asyncio.to_thread(self._loop.trainer.receipts, sampled))

    def _labels(self, phase: str, step: int, *, split: str, version: int | None = None) -> dict[str, str]:
        version = self.progress.policy_version if version is None else version
        return {"phase": phase, "step": str(step), "split": split, "policy_version": str(version)}

    async def _advance(
        self, done: dict[str, int], uses: list[Use], name: str, update: Update | None, told: Metrics, began: float
    ) -> None:
        """Commit a step. With an update: new version, checkpoint and state first; the engine follows after."""
        loop, version = self._loop, self.progress.policy_version + (update is not None)
        metrics: Metrics = {"name": name, "policy_version": version, **told, **(update.metrics if update else {})}
        saved = time.monotonic()
        if update:
            await asyncio.to_thread(loop.trainer.save, loop.run.checkpoint(version))
            await asyncio.to_thread(loop.trainer.save_state, loop.run.state(version))
        metrics |= {"save_s": time.monotonic() - saved, "seconds": time.monotonic() - began, **loop.runtime.counters}
        changes = {**done, "policy_version": version, "metrics": (*self.progress.metrics, metrics)}
        await self._commit(changes, uses, name.split()[0], began)
        if update:
            await loop.engine.set_weights(loop.trainer.state(), version)
        loop.listener.step(name, metrics)

    async def _commit(self, changes: Mapping[str, object], uses: Sequence[Use], part: str, began: float) -> None:
        seconds = {**self.progress.seconds}
        seconds[part] = seconds.get(part, 0.0) + time.monotonic() - began
        records = tuple(UseRecord.model_validate(_use_fields(use)) for use in uses)
        update = {**changes, "seconds": seconds, "last_uses": records}
        self.progress = self.progress.model_copy(update=update)
        self._loop.run.commit(self.progress)
        await self._loop.store.uses(uses)
        evaluated = {evaluation.policy_version for evaluation in self.progress.evaluations.values()}
        current = frozenset({self.progress.policy_version})
        self._loop.run.prune(checkpoints=current | evaluated, states=current)


def _use(session: Session, phase: str, step: int, reason: str) -> Use:
    return Use(session_id=session.session_id, phase=phase, step=step, trained=not reason, reason=reason)


def _why_other(session: Session) -> str:
    """Why an attempt beside the counted one is not used."""
    if session.ending is None or session.ending.ended_by in (EndedBy.INFRA, EndedBy.CANCELLED):
        return "infra"
    return "not_solved" if session.labels.get("phase") == "sft" else "superseded"


def _without(rows: Sequence[TokenRow], credit: Credit) -> list[TokenRow]:
    """The rows that the update of this batch does not forward; it gives the receipts of the others."""
    forwarded = {(r.row.session_id, r.row.branch) for r in credit.batch.rows if r.weight and any(r.row.loss_mask)}
    return [row for row in rows if (row.session_id, row.branch) not in forwarded]


def _use_fields(use: Use) -> dict[str, object]:
    return {name: getattr(use, name) for name in ("session_id", "phase", "step", "trained", "reason")}


def _rewards(sessions: Sequence[Session]) -> Metrics:
    rewards = [session.grade.reward for session in sessions if session.grade and session.grade.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    return {"reward": mean, "rollouts": len(sessions), "graded": len(rewards)}


def _evaluation(sessions: Sequence[Session], policy_version: int) -> Evaluation:
    """The mean over tasks of the mean over a task's graded rollouts; an ungraded rollout is in no mean."""
    by_task: dict[str, list[float]] = {}
    for session in sessions:
        if session.grade and session.grade.reward is not None:
            by_task.setdefault(session.task_id, []).append(session.grade.reward)
    if not by_task:
        raise TrainerError(f"no held-out rollout was graded{_example(sessions)}")
    means = {task: sum(rewards) / len(rewards) for task, rewards in by_task.items()}
    return Evaluation(
        mean_reward=sum(means.values()) / len(means),
        rollouts=len(sessions),
        graded=sum(map(len, by_task.values())),
        policy_version=policy_version,
        by_task=means,
    )


def _example(sessions: Sequence[Session]) -> str:
    """One of them, as the end of an error's line: its task, and its grade or what stood before one."""
    if not sessions:
        return ""
    session = sessions[0]
    ending, grade = session.ending, session.grade
    if ending is not None and ending.ended_by is EndedBy.INFRA:
        said = f"infrastructure failure, {ending.reason}"
    elif grade is not None and grade.reward is None:
        said = f"{grade.kind}, {grade.reason}"
    else:
        said = f"reward {grade.reward if grade else None}, ended by {ending.ended_by if ending else None}"
    return f"; e.g. task {session.task_id}: {' '.join(said.split())[:300]}"
