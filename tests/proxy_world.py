"""A real proxy on a free port over a scripted engine and a real store, with what tests ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import aiohttp
from openai import AsyncOpenAI

from openforgerl.engines.scripted import Script, ScriptedAnswer, ScriptedEngine
from openforgerl.proxy.access import SessionAccess
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.server import ProxyServer, serve
from openforgerl.records import EndedBy, Ending, GenerateRequest, RecordedCall, Session, TokenRow
from openforgerl.store.sqlite import Store
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.template import Template
from openforgerl.trajectories import accounting, check_rows, prompt_ids, rows

ADMIN = "admin-secret"
FINISHED = Ending(ended_by=EndedBy.FINISHED)
BASH = {
    "type": "function",
    "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object", "properties": {}}},
}


@cache
def codec() -> Codec:
    return Codec.load(Path(__file__).parent / "fixtures" / "tiny-chatml")


@cache
def template() -> Template:
    return Template.load(codec())


def odd_ids(text: str, *, ends_turn: bool = True) -> tuple[int, ...]:
    """The text character by character: not the tokenizer's own way, so re-encoding it would show."""
    ids = tuple(token for character in text for token in codec().encode(character))
    return (*ids, template().codec.stop_ids[0]) if ends_turn else ids


def odd(text: str) -> ScriptedAnswer:
    return ScriptedAnswer(ids=odd_ids(text), chunk_sizes=(3,))


class Gate(asyncio.Event):
    """A gate that says when the engine stands before it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.reached.set()
        return await super().wait()

    async def stood_before(self) -> None:
        """The engine waits, and what it gave so far has been passed on."""
        await asyncio.wait_for(self.reached.wait(), 10)
        await asyncio.sleep(0.05)


def call_text(arguments: str = '{"command": "ls"}', name: str = "bash") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def in_turn(*answers: str | ScriptedAnswer) -> Script:
    """The answers in the order of the requests; the last one repeats."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def by_prompt(
    answers: Mapping[str, str | ScriptedAnswer | Callable[[GenerateRequest], str | ScriptedAnswer]],
) -> Script:
    """The answer whose key stands last in the prompt."""

    def script(request: GenerateRequest) -> str | ScriptedAnswer:
        text = codec().decode(request.prompt_ids)
        answer = answers[max(answers, key=text.rfind)]
        return answer(request) if callable(answer) else answer

    return script


@dataclass
class World:
    gateway: Gateway
    server: ProxyServer
    engine: ScriptedEngine
    store: Store
    http: aiohttp.ClientSession
    stack: AsyncExitStack
    opened: int = 0
    clients: list[AsyncOpenAI] = field(default_factory=list)

    async def open(self, **fields: Any) -> SessionAccess:
        self.opened += 1
        strip = fields.pop("strip_system_lines", None)
        session = Session(**{"session_id": f"s{self.opened}", **fields})
        return await self.gateway.open_session(session, strip_system_lines=strip)

    def client(self, access: SessionAccess, **options: Any) -> AsyncOpenAI:
        url = f"{self.server.url}/s/{access.session_id}/v1"
        client = AsyncOpenAI(**{"base_url": url, "api_key": access.key, "max_retries": 0, "timeout": 20, **options})
        self.stack.push_async_callback(client.close)
        return client

    def post(self, access: SessionAccess, body: object, **headers: str) -> Any:
        """A raw request; use as an async context manager."""
        url = f"{self.server.url}/s/{access.session_id}/v1/chat/completions"
        return self.http.post(url, json=body, headers={"Authorization": f"Bearer {access.key}", **_dashed(headers)})

    def control(self, method: str, path: str, body: object = None, token: str = ADMIN) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        return self.http.request(method, f"{self.server.url}{path}", json=body, headers=headers)

    async def settled(self, access: SessionAccess) -> tuple[RecordedCall, ...]:
        """Close the session; its calls."""
        await self.gateway.close_session(access.session_id, FINISHED)
        return self.store.calls(access.session_id)

    async def connected(self, access: SessionAccess, clients: int) -> None:
        """Wait until so many clients wait for an answer of the session."""
        async with asyncio.timeout(10):
            while self.gateway.status(access.session_id).clients_connected != clients:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def recorded(self, session_id: str, count: int) -> tuple[RecordedCall, ...]:
        """Wait until so many calls are committed."""
        async with asyncio.timeout(10):
            while len(calls := self.store.calls(session_id)) < count:  # noqa: ASYNC110 (the store has no event)
                await asyncio.sleep(0.01)
        return calls


@asynccontextmanager
async def proxy(
    folder: Path,
    script: Script,
    *,
    context_length: int = 8192,
    store_class: type[Store] = Store,
    shape: Template | None = None,
    **config: Any,
) -> AsyncIterator[World]:
    """`shape`: the chat template, by default that of a model that reads text only."""
    shape = shape or template()
    engine = ScriptedEngine(script, shape.codec, context_length=context_length)
    store = store_class.open(folder / "store")
    gateway = Gateway(engine=engine, store=store, template=shape, config=ProxyConfig(**config))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.aclose)
        server = await stack.enter_async_context(serve(gateway, admin_token=ADMIN))
        clients = await stack.enter_async_context(AsyncExitStack())
        http = await clients.enter_async_context(aiohttp.ClientSession())
        yield World(gateway=gateway, server=server, engine=engine, store=store, http=http, stack=clients)


def lawful(calls: Sequence[RecordedCall]) -> tuple[TokenRow, ...]:
    """The rows of a session, once laws 1 and 2 were checked on them."""
    made = rows(calls)
    assert check_rows(calls, made) == ()
    assert accounting(calls, made).balanced
    return made


def spelled_as_sampled(calls: Sequence[RecordedCall], call: RecordedCall, earlier: RecordedCall) -> bool:
    """The earlier answer stands in the call's prompt with exactly the ids that were sampled."""
    ids, prompt = earlier.sampled_ids, prompt_ids(calls)[call.call_id]
    return any(prompt[start : start + len(ids)] == ids for start in range(len(prompt) - len(ids) + 1))


def assistant(completion: Any) -> dict[str, Any]:
    """The answer as a plain client keeps it."""
    message = completion.choices[0].message
    kept: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        kept["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
    return kept


async def read_into(got: list[str], stream: Any) -> None:
    """The text of a stream, also of one that breaks."""
    async for chunk in stream:
        got += [choice.delta.content or "" for choice in chunk.choices]


def tool_result(call_id: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
