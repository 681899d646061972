"""An owner of sandboxes that is killed: `sandbox_owner.py ROOT FIRST_UID plain|isolated RUN_ID`; begins, then waits."""

import asyncio
import sys
from pathlib import Path

from openforgerl.records import LaunchPlan
from openforgerl.runtimes.base import SandboxSpec
from openforgerl.runtimes.process import ProcessRuntime, ProcessRuntimeConfig

DAEMON = "(setsid nohup bash -c 'trap \"\" TERM HUP INT; sleep 600 & touch ready-$0; sleep 600' {} >/dev/null 2>&1 &)"
ALL_READY = "until [ -e ready-1 ] && [ -e ready-2 ]; do sleep 0.02; done"


async def main() -> None:
    config = ProcessRuntimeConfig(root=Path(sys.argv[1]), first_uid=int(sys.argv[2]), unsafe=sys.argv[3] == "plain")
    runtime = ProcessRuntime(config)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        print("begun", flush=True)
        await reader.read()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    async with runtime.sandbox(SandboxSpec(run_id=sys.argv[4], session_id="session-1", proxy_address=address)) as box:
        host, port = box.proxy_url.removeprefix("http://").split(":")
        daemons = f"{DAEMON.format(1)}; {DAEMON.format(2)}; {ALL_READY}"
        script = f"{daemons}; echo x > file; exec 9<>/dev/tcp/{host}/{port}; sleep 600"
        await box.run(LaunchPlan(argv=("/bin/bash", "-c", script)), user="agent")


asyncio.run(main())
