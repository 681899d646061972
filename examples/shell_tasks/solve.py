"""Let a served policy solve the held-out tasks inside its harness, with no trainer around, and print its score.

openforgerl serve CONFIG.toml --set model.path=RUN/checkpoints/vN     # prints the URL and the admin token's file
python examples/shell_tasks/solve.py --url URL --token-file FILE [--harness pi] [--samples 1] [--tasks FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

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


async def main() -> None:
    arguments = parse()
    config = load_config(HERE / "train.toml", [f"harness.name={arguments.harness}"])
    harness, tasks = build_harness(config, HERE), load_tasks(arguments.tasks)
    address = urlsplit(arguments.url)
    slots = asyncio.Semaphore(arguments.at_once)
    headers = {"Authorization": f"Bearer {arguments.token_file.read_text().strip()}"}
    runtime = ProcessRuntime(config.runtime)
    await runtime.sweep(RUN_ID)
    async with aiohttp.ClientSession(arguments.url, headers=headers) as control:

        async def one(task: Task, sample: int) -> tuple[str, Grade]:
            async with slots:
                return task.task_id, await solve(
                    control, address, runtime, config, harness, task, f"{task.task_id}-{sample}"
                )

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


async def solve(
    control: aiohttp.ClientSession,
    address: SplitResult,
    runtime: ProcessRuntime,
    config: Config,
    harness: Harness,
    task: Task,
    name: str,
) -> Grade:
    """One session: the proxy gives its key, the harness runs in a sandbox, the task's tests grade what it left."""
    pins = {"temperature": config.rollout.temperature, "max_tokens": config.rollout.max_tokens}
    asked = {
        "task_id": task.task_id,
        "rollout_id": f"{name}-{time.time_ns():x}",
        "harness": harness.name,
        "sampling": pins,
    }
    async with control.post("/sessions", json=asked) as answer:
        answer.raise_for_status()
        session = await answer.json()
    spec = SandboxSpec(
        run_id=RUN_ID,
        session_id=session["session_id"],
        workspace=task.workspace,
        proxy_address=(address.hostname or "", address.port or 80),
    )
    async with runtime.sandbox(spec) as box:
        access = ModelAccess(
            base_url=f"{box.proxy_url}/s/{session['session_id']}",
            key=session["key"],
            model="policy",
            context_length=8192,
            max_tokens=config.rollout.max_tokens,
        )
        await box.run(
            replace(harness.plan(task, access, cache_folder()), deadline_s=task.agent_timeout_s), user="agent"
        )
        path = f"/sessions/{session['session_id']}"
        (await control.post(f"{path}/close", json={"ended_by": "finished"})).raise_for_status()
        grade = await TestsGrader().grade(task, box)
    body = {"reward": grade.reward} if grade.kind == "reward" else {grade.kind: grade.reason}
    (await control.post(f"{path}/grade", json=body)).raise_for_status()
    return grade


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except (OSError, aiohttp.ClientError, OpenForgeError) as error:
        raise SystemExit(f"solve: {error}") from None
