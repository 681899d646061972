"""Images that the vendors' SDKs send: the engine gets ids, places and exact bytes, and the record has them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from openforgerl.records import GenerateRequest
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.template import Template
from openforgerl.tokens.vision import Vision
from openforgerl.trajectories import prompt_ids
from pictures import data_url, picture
from proxy_world import World, lawful, proxy
from tiny_vision import write_vision_tokens

ONE, TWO = picture(40, 24, seed=1), picture(30, 60, seed=2, kind="JPEG")
NAMES = [hashlib.sha256(data).hexdigest() for data in (ONE, TWO)]


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Template:
    _, folder = write_vision_tokens(tmp_path_factory.mktemp("vision"))
    codec = Codec.load(folder)
    return Template.load(codec, vision=Vision.load(folder, codec))


async def by_openai(world: World, access: Any) -> None:
    messages: list[Any] = [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": data_url(ONE)}},
                {"type": "text", "text": "and"},
                {"type": "image_url", "image_url": {"url": data_url(TWO, "image/jpeg")}},
            ],
        }
    ]
    for _ in range(2):
        answer = await world.client(access).chat.completions.create(model="m", messages=messages)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
        messages += [{"role": "user", "content": "again"}]


async def by_anthropic(world: World, access: Any) -> None:
    client = AsyncAnthropic(base_url=f"{world.server.url}/s/{access.session_id}", api_key=access.key, max_retries=0)
    world.stack.push_async_callback(client.close)
    sources = [
        {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}
        for kind, data in (("image/png", ONE), ("image/jpeg", TWO))
    ]
    one, two = ({"type": "image", "source": source} for source in sources)
    messages: list[Any] = [{"role": "user", "content": [one, {"type": "text", "text": "and"}, two]}]
    for _ in range(2):
        async with client.messages.stream(model="m", max_tokens=50, messages=messages) as stream:
            answer = await stream.get_final_message()
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "again"}]


@pytest.mark.parametrize("talk", [by_openai, by_anthropic])
async def test_pictures_reach_the_engine_and_the_record(tmp_path: Path, shape: Template, talk: Any) -> None:
    got: list[GenerateRequest] = []

    def script(request: GenerateRequest) -> str:
        got.append(request)
        return "I see."

    async with proxy(tmp_path, script, shape=shape) as world:
        access = await world.open()
        await talk(world, access)
        calls = await world.settled(access)
        assert [world.store.image(name) for name in NAMES] == [ONE, TWO]
    prompts, vision = prompt_ids(calls), shape.vision
    assert vision is not None
    for request, call in zip(got, calls, strict=True):
        assert [image.sha256 for image in request.images] == NAMES
        assert [request.image_bytes[name] for name in NAMES] == [ONE, TWO]
        assert (call.images, prompts[call.call_id]) == (request.images, request.prompt_ids)
        assert call.processor_hash == vision.processor_hash
        assert request.prompt_ids.count(vision.pad_id) == sum(image.count for image in call.images)
    (row,) = lawful(calls)
    assert row.images == calls[-1].images
