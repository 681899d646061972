"""`openforgerl train CONFIG.toml`: builds the parts, runs the loop, writes the report, prints one JSON line last."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import orjson

from openforgerl.cli.building import build_engine, build_grader, build_harness, build_template, model_folder, read_tasks
from openforgerl.cli.config import Config
from openforgerl.cli.loading import load_config
from openforgerl.cli.resolved import to_toml
from openforgerl.cli.view import TerminalView
from openforgerl.engines.base import Engine
from openforgerl.engines.local import LocalEngine
from openforgerl.engines.scripted import ScriptedEngine
from openforgerl.errors import ConfigError
from openforgerl.harnesses.installing import cache_folder
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.server import serve
from openforgerl.records import Task
from openforgerl.rollout.attempt import World
from openforgerl.rollout.scheduler import Scheduler
from openforgerl.runtimes.process import ProcessRuntime
from openforgerl.store.sqlite import Store
from openforgerl.tokens.template import DEFAULT, Template
from openforgerl.trainers.local import LocalTrainer
from openforgerl.workflows.batches import demonstrations
from openforgerl.workflows.resume import recover
from openforgerl.workflows.run_folder import Progress, RunFolder
from openforgerl.workflows.summary import summary
from openforgerl.workflows.teacher import Teacher
from openforgerl.workflows.train import Loop, Training


def run(arguments: argparse.Namespace) -> int:
    folder = arguments.run or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    asyncio.run(_train(arguments.config, arguments.overrides, RunFolder(folder), resume=arguments.resume))
    return 0


async def _train(file: Path, overrides: list[str], run: RunFolder, *, resume: bool) -> None:
    config = load_config(file, overrides)
    progress = begin(config, run, resume=resume)
    async with parts(config, file.parent, run, progress) as loop:
        training = Training(loop, progress)
        finished = await training.run()
        print(f"run folder: {run.root}")
        print(orjson.dumps(summary(finished, loop.store)).decode())


def begin(config: Config, run: RunFolder, *, resume: bool) -> Progress:
    """A new run folder, or the progress of the one to go on with. Raises ConfigError."""
    if not resume:
        if run.exists:
            raise ConfigError(f"--run {run.root} holds a run already: add --resume to go on with it, or name another")
        run.create()
        run.config.write_text(to_toml(config))
        run.commit(Progress())
    progress = run.read_progress()
    if resume and run.config.read_text() != to_toml(config):
        raise ConfigError(f"--resume: the config is not that of {run.config}; go on with that file as CONFIG.toml")
    return progress


@asynccontextmanager
async def parts(config: Config, source: Path, run: RunFolder, progress: Progress) -> AsyncIterator[Loop]:
    """Everything that the loop needs, closed on exit in reverse order."""
    train, heldout = read_tasks("train", config.tasks.train), read_tasks("heldout", config.tasks.heldout)
    base = model_folder(config)
    model = run.checkpoint(progress.policy_version) if progress.policy_version else base
    template = build_template(config, base)
    run_id = f"run-{run.root.resolve().name}".lower().replace("_", "-")[:63]
    async with AsyncExitStack() as stack:
        store = Store.open(run.store)
        stack.push_async_callback(store.aclose)
        await recover(run, progress, store)
        runtime = ProcessRuntime(config.runtime)
        await runtime.sweep(run_id)
        engine = build_engine(config, model, source, policy_version=progress.policy_version)
        stack.push_async_callback(engine.aclose)
        if not isinstance(engine, LocalEngine):
            raise ConfigError(f"[engine] name = {config.engine.name!r}: training needs the local engine")
        trainer = LocalTrainer.load(model, config.trainer, chat_template=config.model.template or DEFAULT)
        if progress.policy_version:
            trainer.load_state(run.state(progress.policy_version))

        async def scheduler(sampler: Engine) -> Scheduler:
            proxy = config.proxy if sampler is engine else config.proxy.model_copy(update={"port": 0})
            gateway = Gateway(engine=sampler, store=store, template=template, config=proxy)
            server = await stack.enter_async_context(serve(gateway, admin_token=secrets.token_urlsafe(32)))
            world = World(
                run_id=run_id,
                gateway=gateway,
                proxy_address=server.address,
                runtime=runtime,
                harness=harness,
                grader=build_grader(config, source),
                cache=cache_folder(),
                logs=run.logs,
                context_length=sampler.context_length,
            )
            return Scheduler(world, config.rollout)

        harness = build_harness(config, source)
        yield Loop(
            run=run,
            store=store,
            student=await scheduler(engine),
            teacher=await scheduler(teacher_engine(template, train, config)),
            engine=engine,
            trainer=trainer,
            train_tasks=train,
            heldout_tasks=heldout,
            sft=config.trainer.sft,
            grpo=config.trainer.grpo,
            credit=config.trainer.credit,
            evaluation=config.evaluation,
            seed=config.trainer.seed,
            listener=TerminalView(config.trainer.grpo.steps),
        )


def teacher_engine(template: Template, tasks: tuple[Task, ...], config: Config) -> ScriptedEngine:
    """Plays the solutions of the demonstrations."""
    requests = demonstrations(tasks, config.trainer.sft.families, {})
    wanted = {request.rollout_id: request.task for request in requests}
    return ScriptedEngine(Teacher(template.codec, wanted), template.codec)
