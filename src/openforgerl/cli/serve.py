"""`openforgerl serve`: a model behind the recording proxy, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import secrets
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from openforgerl.cli.building import build_engine, build_template, model_folder
from openforgerl.cli.config import Config
from openforgerl.cli.loading import blaming, load_config
from openforgerl.errors import ConfigError
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.server import ProxyServer, serve
from openforgerl.records import EndedBy, Ending
from openforgerl.store.sqlite import Store

_TOKEN_FILE = "admin-token"


def run(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config, arguments.overrides)
    with blaming(arguments.config, arguments.overrides):
        return uvloop.run(_serve(config, arguments.config.parent))


async def _serve(config: Config, own: Path) -> int:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    model = model_folder(config)
    template = build_template(config, model)
    async with AsyncExitStack() as stack:
        store = Store.open(config.store.path)
        stack.push_async_callback(store.aclose)
        await _seal_left_open(store)
        token, file = admin_token(config.store.path, config.proxy.admin_token_env)
        engine = await build_engine(config, model, own)
        stack.push_async_callback(engine.aclose)
        gateway = Gateway(engine=engine, store=store, template=template, config=config.proxy)
        server = await stack.enter_async_context(serve(gateway, admin_token=token))
        print(_welcome(server, model, store, file or f"${config.proxy.admin_token_env}"), flush=True)
        spare_the_collector()
        await stopped.wait()
    return 0


def spare_the_collector() -> None:
    """What is loaded stays; calls make few cycles and many objects, which need not be walked so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def _seal_left_open(store: Store) -> None:
    """Keys die with the process that gave them: what it left open can only be closed."""
    ending = Ending(ended_by=EndedBy.INFRA, reason="the proxy was restarted")
    for session in store.sessions():
        if session.ending is None:
            await store.seal(session.session_id, ending)


def admin_token(folder: Path, variable: str) -> tuple[str, Path | None]:
    """The token and the file that holds it: a fresh one that only this user reads, or none where the environment says.

    Raises ConfigError.
    """
    if token := os.environ.get(variable):
        return token, None
    file, token = folder / _TOKEN_FILE, secrets.token_urlsafe(32)
    try:
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(token)
    except OSError as error:
        raise ConfigError(f"[store] path: {file} cannot be written: {error.strerror}") from error
    return token, file


def _welcome(server: ProxyServer, model: Path, store: Store, token: Path | str) -> str:
    """`token`: the file with the admin token, or the environment variable."""
    # printf is the shell's own, so that the token is in no program's arguments.
    shown = f'"{token}"' if isinstance(token, str) else f'"$(cat {token})"'
    return "\n".join(
        [
            f"serving {model} at {server.url}",
            f"recording to {store.folder}",
            f"admin token: in {token}",
            f"a session: printf 'Authorization: Bearer %s' {shown} | curl -s -H @- -d '{{}}' {server.url}/sessions",
        ]
    )
