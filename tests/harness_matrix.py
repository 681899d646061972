"""Real harnesses driven by a scripted policy: which tool runs a command in each, and a world to run them in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from openforgerl.engines.limits import refusal
from openforgerl.engines.scripted import ScriptedAnswer, ScriptedEngine
from openforgerl.graders.tests import TestsGrader
from openforgerl.harnesses.base import Harness, HarnessConfig
from openforgerl.harnesses.claude_code import ClaudeCode
from openforgerl.harnesses.codex import Codex
from openforgerl.harnesses.gemini_cli import GeminiCli
from openforgerl.harnesses.installing import cache_folder
from openforgerl.harnesses.mini_swe_agent import MiniSweAgent
from openforgerl.harnesses.openclaw import OpenClaw
from openforgerl.harnesses.opencode import OpenCode
from openforgerl.harnesses.pi import Pi
from openforgerl.harnesses.qwen_code import QwenCode
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.recording import context_full
from openforgerl.proxy.server import serve
from openforgerl.records import GenerateRequest, RecordedCall, Session, Task
from openforgerl.rollout.attempt import RolloutRequest, World
from openforgerl.rollout.config import RolloutConfig
from openforgerl.rollout.scheduler import Scheduler
from openforgerl.runtimes.process import ProcessRuntime, ProcessRuntimeConfig
from openforgerl.store.sqlite import Store
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.template import Template

FIXTURES = Path(__file__).parent / "fixtures"
CONTEXT = 1 << 18
THINK = "<think>\nlet me see\n</think>\n\n"
HEAD = "To call a tool, write <tool_call>"
"""In the prompt of a call that offers tools."""
INSTRUCTION = "Make the files a, b, c and d, then answer: Done."
SUBTASK = "Make the file a with the word one in it."
GRADER = """#!/bin/bash
cd /workspace || exit 1
[ "$(cat a b c d)" = "$(printf 'one\\ntwo\\nthree\\nfour')" ]
echo $((1 - $?)) >/logs/verifier/reward.txt
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A harness as the scripted policy must know it."""

    make: Callable[[HarnessConfig], Harness]
    tool: str
    """The tool that runs a command of the shell."""
    arguments: Callable[[str], Mapping[str, object]] = lambda command: {"command": command}
    delegate: tuple[str, Mapping[str, object]] | None = None
    """The tool that starts a sub-agent, and its arguments beside the prompt."""
    submits: bool = False
    """Ends by a command of its own, not by an answer without a call."""
    deadline_s: float = 120.0

    def call(self, command: str) -> str:
        return tool_call(self.tool, self.arguments(command))


def tool_call(name: str, arguments: Mapping[str, object]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': dict(arguments)})}</tool_call>"


_GENERAL = {"description": "Make a file", "subagent_type": "general-purpose"}
MEMBERS = {
    "pi": Member(make=Pi, tool="bash"),
    "mini-swe-agent": Member(make=MiniSweAgent, tool="bash", submits=True),
    "claude-code": Member(
        make=ClaudeCode,
        tool="Bash",
        arguments=lambda command: {"command": command, "description": "Make a file"},
        delegate=("Agent", {**_GENERAL, "run_in_background": False}),
    ),
    "codex": Member(make=Codex, tool="exec_command", arguments=lambda command: {"cmd": command}),
    "gemini-cli": Member(make=GeminiCli, tool="run_shell_command"),
    "qwen-code": Member(
        make=QwenCode,
        tool="run_shell_command",
        arguments=lambda command: {"command": command, "is_background": False},
        delegate=("agent", {**_GENERAL, "run_in_background": False}),
    ),
    "opencode": Member(
        make=OpenCode,
        tool="bash",
        arguments=lambda command: {"command": command, "description": "Make a file"},
        delegate=("task", {"description": "Make a file", "subagent_type": "general"}),
    ),
    "openclaw": Member(make=OpenClaw, tool="exec", deadline_s=300.0),
}


def _overflow() -> ScriptedAnswer:
    """The context is full, in the words and with the numbers of the proxy."""
    full = context_full(CONTEXT + 1, CONTEXT)
    error = refusal(str(full), code=full.code)
    error.context_full = full.context_full
    return ScriptedAnswer(fail_after=0, error=error)


OVERFLOW = _overflow()
_AFTER_RESULT = "</tool_response><|im_end|>\n<|im_start|>assistant\n"


@dataclass(slots=True)
class Policy:
    """Plays four calls: a, then b and c at once, then d, then the end. Keeps what it was asked."""

    codec: Codec
    member: Member
    asked: list[tuple[str, str]] = field(default_factory=list)
    """(id, prompt) of each call."""
    faults: dict[int, ScriptedAnswer] = field(default_factory=dict)
    """By the number of the call that offers tools: what happens instead, once."""
    delegates: bool = False
    """File a is made by a sub-agent."""
    worked: int = 0
    overflowed: bool = False
    """What is asked behind the history of tools is then a summary of it."""

    def __call__(self, request: GenerateRequest) -> str | ScriptedAnswer:
        prompt = self.codec.decode(request.prompt_ids)
        self.asked.append((request.request_id, prompt))
        if self.overflowed and "<tool_response>\n" in prompt and not prompt.endswith(_AFTER_RESULT):
            return self.spelled("The file a was made; b, c and d are to be made.")
        if HEAD not in prompt:
            return self.spelled(f"Number {len(self.asked)}: the files a, b, c and d, one by one.")
        self.worked += 1
        fault = self.faults.pop(self.worked, None)
        self.overflowed = self.overflowed or fault is OVERFLOW
        return fault or self.answer(prompt)

    def answer(self, prompt: str) -> ScriptedAnswer:
        results = prompt.count("<tool_response>\n")
        if self.delegates and INSTRUCTION not in prompt:
            return self.spelled("I made it." if results else self.member.call("echo one > a"))
        return self.spelled(self.turn(results))

    def turn(self, results: int) -> str:
        call = self.member.call
        if results == 0 and self.delegates and self.member.delegate:
            name, arguments = self.member.delegate
            return THINK + tool_call(name, {**arguments, "prompt": SUBTASK})
        if results == 0:
            return f"{THINK}I begin.\n{call('echo one > a')}"
        if results < 3:
            return f"{call('echo two > b')}\n{call('echo three > c')}"
        if results == 3:
            return f"{THINK}{call('echo four > d')}"
        if self.member.submits:
            return call("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
        return "Done."

    def spelled(self, text: str) -> ScriptedAnswer:
        """Character by character: not the tokenizer's own way, so encoding it anew would show."""
        ids = tuple(token for character in text for token in self.codec.encode(character))
        return ScriptedAnswer(ids=(*ids, self.codec.stop_ids[0]), chunk_sizes=(7,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A rollout that is over."""

    session: Session
    calls: tuple[RecordedCall, ...]
    policy: Policy
    log: str


def task_in(folder: Path) -> Task:
    tests = folder / "task" / "tests"
    tests.mkdir(parents=True)
    (tests / "test.sh").write_text(GRADER)
    return Task(
        task_id="four-files",
        instruction=INSTRUCTION,
        folder=tests.parent,
        tests=tests,
        workspace=None,
        agent_timeout_s=600.0,
        grader_timeout_s=30.0,
    )


async def play(
    folder: Path, member: Member, *, max_calls: int = 20, delegates: bool = False, **faults: ScriptedAnswer
) -> Played:
    """One rollout of the harness. `faults`: call1=..., call2=... go wrong."""
    codec = Codec.load(FIXTURES / "tiny-chatml")
    wrong = {int(name.removeprefix("call")): each for name, each in faults.items()}
    policy = Policy(codec, member, delegates=delegates, faults=wrong)
    async with scheduler(folder, member, policy, codec, max_calls) as (many, store):
        request = RolloutRequest(rollout_id="r", group_id="g", task=task_in(folder))
        (session,) = await many.collect((request,))
        calls = store.calls(session.session_id)
    log = (folder / "logs" / f"{session.session_id}.log").read_text(errors="replace")
    return Played(session=session, calls=calls, policy=policy, log=log)


@asynccontextmanager
async def scheduler(
    folder: Path, member: Member, policy: Policy, codec: Codec, max_calls: int
) -> AsyncIterator[tuple[Scheduler, Store]]:
    harness = member.make(HarnessConfig())
    harness.install(cache_folder())
    (folder / "logs").mkdir()
    store = Store.open(folder / "store")
    config = ProxyConfig(max_calls_per_session=max_calls)
    engine = ScriptedEngine(policy, codec, context_length=CONTEXT)
    gateway = Gateway(engine=engine, store=store, template=Template.load(codec), config=config)
    async with serve(gateway, admin_token="admin") as server:
        world = World(
            run_id="matrix",
            gateway=gateway,
            proxy_address=server.address,
            runtime=ProcessRuntime(ProcessRuntimeConfig(root=folder / "boxes")),
            harness=harness,
            grader=TestsGrader(),
            cache=cache_folder(),
            logs=folder / "logs",
            context_length=CONTEXT,
        )
        limits = RolloutConfig(concurrency=1, infra_retries=0, deadline_s=member.deadline_s, max_tokens=4096)
        yield Scheduler(world, limits), store
    await store.aclose()
