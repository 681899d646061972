"""`openforgerl train`: builds the loop that a config describes, runs it, and prints its summary as the last line."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from openforgerl.cli.building import (
    build_grader,
    build_harness,
    build_template,
    check_families,
    check_port,
    model_folder,
    read_tasks,
    settle_libraries,
)
from openforgerl.cli.claiming import claim, run_id
from openforgerl.cli.config import Config
from openforgerl.cli.loading import blaming, load_config
from openforgerl.cli.report import Reporting
from openforgerl.cli.stopping import INTERRUPTED, until_terminated
from openforgerl.cli.view import TerminalView
from openforgerl.engines.base import Engine
from openforgerl.engines.scripted import ScriptedEngine
from openforgerl.errors import ConfigError
from openforgerl.graders.base import Grader
from openforgerl.harnesses.base import Harness
from openforgerl.harnesses.installing import cache_folder
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.server import serve
from openforgerl.records import Task
from openforgerl.rollout.attempt import World
from openforgerl.rollout.scheduler import Scheduler
from openforgerl.runtimes.process import ProcessRuntime
from openforgerl.store.sqlite import Store
from openforgerl.tokens.template import Template
from openforgerl.workflows.batches import demonstrations
from openforgerl.workflows.resume import recover
from openforgerl.workflows.run_folder import Progress, RunFolder
from openforgerl.workflows.summary import summary
from openforgerl.workflows.teacher import Teacher


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is known before weights are loaded and anything is started."""

    config: Config
    train_tasks: tuple[Task, ...]
    heldout_tasks: tuple[Task, ...]
    model: Path
    template: Template
    harness: Harness
    grader: Grader
    runtime: ProcessRuntime

    @classmethod
    def of(cls, config: Config, own: Path) -> Plan:
        """Finds whatever is wrong with the config. Raises the errors of its parts."""
        if config.engine.type != "local":
            raise ConfigError(f"[engine] type = {config.engine.type!r}: only the local engine can be trained")
        model = model_folder(config)
        train_tasks = read_tasks("train", config.tasks.train)
        if config.trainer.sft.steps:
            check_families(train_tasks, config.trainer.sft.families)
        check_port(config.proxy.host, config.proxy.port)
        return cls(
            config=config,
            train_tasks=train_tasks,
            heldout_tasks=read_tasks("heldout", config.tasks.heldout),
            model=model,
            template=build_template(config, model),
            harness=build_harness(config, own),
            grader=build_grader(config, own),
            runtime=ProcessRuntime(config.runtime),
        )


def run(arguments: argparse.Namespace) -> int:
    if arguments.resume and arguments.run is None:
        raise ConfigError("--resume: name the run that shall go on with --run FOLDER")
    config = load_config(arguments.config, arguments.overrides)
    with blaming(arguments.config, arguments.overrides):
        plan = Plan.of(config, arguments.config.parent)
    folder = RunFolder(arguments.run or Path("runs") / time.strftime("%Y%m%d-%H%M%S"))
    progress = claim(folder, config, resume=arguments.resume)
    settle_libraries()
    code = INTERRUPTED
    with suppress(KeyboardInterrupt):
        code = asyncio.run(until_terminated(_train(plan, folder, progress)))
    if code:
        print(f"stopped; the same command with --run {folder.root} --resume goes on", file=sys.stderr)
    return code


async def _train(plan: Plan, folder: RunFolder, progress: Progress) -> int:
    config = plan.config
    async with AsyncExitStack() as stack:
        store = Store.open(folder.store)
        stack.push_async_callback(store.aclose)
        # Behind the store's lock: a second training on this folder is refused at once, not after torch is loaded.
        from openforgerl.cli.board import Board
        from openforgerl.cli.policy import load_policy
        from openforgerl.workflows.train import Loop, Training

        await recover(folder, progress, store)
        await plan.runtime.sweep(run_id(folder))
        stack.push_async_callback(plan.runtime.sweep, run_id(folder))
        engine, trainer = load_policy(config, plan.model, folder, progress)
        stack.push_async_callback(engine.aclose)
        reporting = Reporting(folder, TerminalView(config.trainer.grpo.steps))
        board = Board(folder.root / "tensorboard", reporting, progress.policy_version)
        stack.callback(board.close)
        loop = Loop(
            run=folder,
            store=store,
            student=await _scheduler(stack, plan, folder, store, engine, config.proxy.port),
            teacher=await _scheduler(stack, plan, folder, store, _teacher(plan), 0),
            engine=engine,
            trainer=trainer,
            train_tasks=plan.train_tasks,
            heldout_tasks=plan.heldout_tasks,
            sft=config.trainer.sft,
            grpo=config.trainer.grpo,
            credit=config.trainer.credit,
            evaluation=config.evaluation,
            seed=config.trainer.seed,
            listener=board,
            runtime=plan.runtime,
        )
        print(f"run {folder.root}: {plan.harness.name}, {plan.runtime.isolation}", flush=True)
        try:
            done = await Training(loop, progress).run()
        finally:
            await reporting.aclose()
        print(orjson.dumps(summary(done, store)).decode(), flush=True)
    return 0


async def _scheduler(
    stack: AsyncExitStack, plan: Plan, folder: RunFolder, store: Store, engine: Engine, port: int
) -> Scheduler:
    """Rollouts of one engine, behind a proxy of its own."""
    config = plan.config
    proxy = config.proxy.model_copy(update={"port": port})
    gateway = Gateway(engine=engine, store=store, template=plan.template, config=proxy)
    server = await stack.enter_async_context(serve(gateway, admin_token=secrets.token_urlsafe(32)))
    world = World(
        run_id=run_id(folder),
        gateway=gateway,
        proxy_address=server.address,
        runtime=plan.runtime,
        harness=plan.harness,
        grader=plan.grader,
        cache=cache_folder(),
        logs=folder.logs,
        model_name=config.proxy.model_name,
        context_length=engine.context_length,
    )
    return Scheduler(world, config.rollout)


def _teacher(plan: Plan) -> ScriptedEngine:
    requests = demonstrations(plan.train_tasks, plan.config.trainer.sft.families, {})
    codec = plan.template.codec
    return ScriptedEngine(Teacher(codec, {request.rollout_id: request.task for request in requests}), codec)
