"""Let a served policy solve the held-out tasks inside its harness, with no trainer around, and print its score.

openforgerl serve CONFIG.toml --set model.path=RUN/checkpoints/vN     # prints the URL and the admin token's file
python examples/shell_tasks/solve.py --url URL --token-file FILE [--harness pi] [--samples 1] [--tasks FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from openforgerl.cli.building import build_harness
from openforgerl.cli.config import Config
from openforgerl.cli.loading import load_config
from openforgerl.errors import OpenForgeError
from openforgerl.graders.tests import TestsGrader
from openforgerl.harnesses.base import Harness, ModelAccess
from openforgerl.harnesses.installing import cache_folder
from openforgerl.records import Grade, Task
from openforgerl.runtimes.base import SandboxSpec
from openforgerl.runtimes.process import ProcessRuntime
from openforgerl.tasks.harbor import load_tasks

HERE = Path(__file__).parent
RUN_ID = "solve"


@dataclass(frozen=True, kw_only=True)
class Solver:
    """One session a task: the proxy gives its key, the harness runs in a sandbox, the task's tests grade it."""

    control: aiohttp.ClientSession
    proxy_address: tuple[str, int]
    config: Config
    harness: Harness
    runtime: ProcessRuntime

    async def solve(self, task: Task, sample: int) -> Grade:
        session = await self.post("/sessions", self.wishes(task, sample))
        session_id = session["session_id"]
        spec = SandboxSpec(
            run_id=RUN_ID, session_id=session_id, workspace=task.workspace, proxy_address=self.proxy_address
        )
        async with self.runtime.sandbox(spec) as box:
            access = ModelAccess(
                base_url=f"{box.proxy_url}/s/{session_id}",
                key=session["key"],
                model="policy",
                context_length=8192,
                max_tokens=self.config.rollout.max_tokens,
            )
            plan = self.harness.plan(task, access, cache_folder())
            await box.run(replace(plan, deadline_s=task.agent_timeout_s), user="agent")
            await self.post(f"/sessions/{session_id}/close", {"ended_by": "finished"})
            grade = await TestsGrader().grade(task, box)
        body = {"reward": grade.reward} if grade.kind == "reward" else {grade.kind: grade.reason}
        await self.post(f"/sessions/{session_id}/grade", body)
        return grade

    def wishes(self, task: Task, sample: int) -> dict[str, object]:
        pins = {"temperature": self.config.rollout.temperature, "max_tokens": self.config.rollout.max_tokens}
        rollout_id = f"{task.task_id[:40]}-{sample}-{time.time_ns():x}"
        return {"task_id": task.task_id, "rollout_id": rollout_id, "harness": self.harness.name, "sampling": pins}

    async def post(self, path: str, body: object) -> dict[str, str]:
        async with self.control.post(path, json=body) as answer:
            if answer.status >= 400:
                raise ConnectionError(f"{path}: {answer.status} {await answer.text()}")
            found: dict[str, str] = await answer.json()
            return found


async def main() -> None:
    arguments = parse()
    config = load_config(HERE / "train.toml", [f"harness.name={arguments.harness}"])
    tasks, url = load_tasks(arguments.tasks), urlsplit(arguments.url)
    headers = {"Authorization": f"Bearer {arguments.token_file.read_text().strip()}"}
    slots = asyncio.Semaphore(arguments.at_once)
    async with aiohttp.ClientSession(arguments.url, headers=headers) as control:
        solver = Solver(
            control=control,
            proxy_address=(url.hostname or "", url.port or 80),
            config=config,
            harness=build_harness(config, HERE),
            runtime=ProcessRuntime(config.runtime),
        )
        await solver.runtime.sweep(RUN_ID)

        async def one(task: Task, sample: int) -> tuple[str, Grade]:
            async with slots:
                return task.task_id, await solver.solve(task, sample)

        grades = await asyncio.gather(*(one(task, n) for task in tasks for n in range(arguments.samples)))
    for name, grade in grades:
        print(f"{name:<32} {grade.reward if grade.kind == 'reward' else f'{grade.kind}: {grade.reason}'}")
    rewards = [grade.reward for _, grade in grades if grade.reward is not None]
    print(f"{sum(rewards) / max(len(rewards), 1):.2f} mean reward, {len(rewards)} of {len(grades)} graded")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--harness", default="pi")
    parser.add_argument("--tasks", type=Path, default=HERE / "heldout")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except (OSError, aiohttp.ClientError, OpenForgeError) as error:
        raise SystemExit(f"solve: {error}") from None
