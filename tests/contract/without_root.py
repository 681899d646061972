"""The runtime as an ordinary user: `without_root.py UID FOLDER` gives up root, then prints one line a fact.

It loads everything first, because that user may not be able to read the interpreter that root uses.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401
import os
import sys
import time
from pathlib import Path

from openforgerl.records import LaunchPlan
from openforgerl.runtimes.base import RunEnd, Sandbox, SandboxSpec
from openforgerl.runtimes.process import ProcessRuntime, ProcessRuntimeConfig


async def run(box: Sandbox, script: str, **fields: object) -> RunEnd:
    user = fields.pop("user", "agent")
    return await box.run(LaunchPlan(argv=("/bin/bash", "-c", script), **fields), user=user)  # type: ignore[arg-type]


async def facts(runtime: ProcessRuntime, address: tuple[str, int]) -> None:
    spec = SandboxSpec(run_id="run-1", session_id="session-1", proxy_address=address)
    async with runtime.sandbox(spec) as box:
        talk = "exec 9<>/dev/tcp/127.0.0.1/8000; echo hello >&9; head -1 <&9; cat ~/.key; id -un"
        print((await run(box, talk, files={"/home/agent/.key": b"secret\n"})).output)
        print((await run(box, f"(exec 9<>/dev/tcp/127.0.0.1/{address[1]}) 2>/dev/null && echo REACHED")).output)
        end = await run(box, "(setsid sleep 60 &); sleep 60", deadline_s=0.4)
        print(end.cause, end.duration_s < 5)
        await run(box, "echo 42 > answer; mkdir locked; echo 43 > locked/file; chmod 0 answer locked .")
        look = (
            "cat answer locked/file; echo 1 > /logs/verifier/reward.txt; (exec 9<>/dev/tcp/127.0.0.1/8000) 2>/dev/null"
        )
        print((await run(box, look, user="grader")).output, await box.get("/logs/verifier/reward.txt"))
        print((await run(box, "grep -E 'Cap(Eff|Bnd)|NoNew' /proc/self/status; ls /logs /tests 2>/dev/null")).output)
        print(
            (
                await run(box, "for f in /x /etc/x /home/x /opt/x /logs; do mkdir $f 2>/dev/null && echo MADE; done")
            ).output
        )
        await run(box, "mkdir -p a/b; chmod 0 a/b a .")


async def main() -> None:
    uid, folder = int(sys.argv[1]), Path(sys.argv[2])
    sys.executable = "/usr/bin/python3"
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"proxy:" + await reader.readline())

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    runtime = ProcessRuntime(ProcessRuntimeConfig(root=folder / "sandboxes"))
    print(runtime.isolation)
    started = time.monotonic()
    await facts(runtime, server.sockets[0].getsockname())
    print(time.monotonic() - started < 20, await runtime.sweep("run-1"))


asyncio.run(main())
