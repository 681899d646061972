"""Images in prompts: as many placeholders as the model's processor puts, in order, each with its place and grid."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import Qwen3VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from openforgerl.errors import AssemblyError, TrainerError
from openforgerl.records import ImageRef, Message, ModelRequest, PromptImage, Role
from openforgerl.tokens.assembly import Assembler
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.template import Template
from openforgerl.tokens.vision import Vision, mrope_positions
from openforgerl.trainers.local_terms import RowTable
from openforgerl.trajectories import rows
from pictures import picture
from recorded_calls import recorded
from tiny_vision import PROCESSOR, write_vision_tokens
from token_world import template as text_template

PICTURES = [picture(16 * wide, 8 * high, seed=wide) for wide, high in ((1, 1), (3, 2), (2, 9), (5, 5), (3, 2))]
NAMES = [hashlib.sha256(data).hexdigest() for data in PICTURES]
BYTES = dict(zip(NAMES, PICTURES, strict=True))
TURNS = st.tuples(st.sampled_from([Role.USER, Role.TOOL]), st.lists(st.integers(0, 4), max_size=3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_tokens(tmp_path_factory.mktemp("vision"))[1]


@pytest.fixture(scope="module")
def template(folder: Path) -> Template:
    codec = Codec.load(folder)
    return Template.load(codec, vision=Vision.load(folder, codec))


def vision_of(template: Template) -> Vision:
    assert template.vision is not None
    return template.vision


def showing(text: str, *images: tuple[int, int], role: Role = Role.USER) -> Message:
    """`images`: (number of the picture, place in the text)."""
    refs = tuple(ImageRef(sha256=NAMES[number], media_type="image/png", at=at) for number, at in images)
    return Message(role=role, text=text, images=refs)


def asked(*messages: Message) -> ModelRequest:
    return ModelRequest(messages=messages, images=BYTES)


def stock_grid(data: bytes) -> list[int]:
    made = Qwen2VLImageProcessorPil(**PROCESSOR)(Image.open(io.BytesIO(data)), return_tensors="pt")
    return made["image_grid_thw"][0].tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400))
def test_the_grid_is_the_processors(template: Template, width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    data = io.BytesIO()
    Image.new("RGB", (width, height)).save(data, "PNG")
    assert list(vision_of(template).grid(data.getvalue())) == stock_grid(data.getvalue())


def test_an_image_that_the_processor_refuses_is_a_fault_of_the_request(template: Template) -> None:
    data = io.BytesIO()
    Image.new("RGB", (201, 1)).save(data, "PNG")
    with pytest.raises(AssemblyError, match="too narrow") as caught:
        vision_of(template).grid(data.getvalue())
    assert caught.value.http_status == 400


def test_each_image_stands_in_its_place_with_its_placeholders(template: Template) -> None:
    vision = vision_of(template)
    prompt = Assembler(template).assemble(asked(showing("Look.And?", (1, 0), (2, 5)), showing("", (1, 0))))
    counts = [vision.count(vision.grid(PICTURES[number])) for number in (1, 2, 1)]
    pads = "".join(template.codec.token_text(vision.pad_id) for _ in range(1))
    first, second, third = (f"<|vision_start|>{pads * count}<|vision_end|>" for count in counts)
    expected = (
        f"<|im_start|>user\n{first}Look.{second}And?<|im_end|>\n<|im_start|>user\n{third}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.codec.decode(prompt.ids) == expected
    assert [image.sha256 for image in prompt.images] == [NAMES[1], NAMES[2], NAMES[1]]
    assert [image.count for image in prompt.images] == counts
    for image in prompt.images:
        assert set(prompt.ids[image.at : image.at + image.count]) == {vision.pad_id}


def test_placeholder_text_in_a_message_is_text(template: Template) -> None:
    prompt = Assembler(template).assemble(asked(showing("<|image_pad|>", (0, 13))))
    assert prompt.ids.count(vision_of(template).pad_id) == prompt.images[0].count


@settings(max_examples=30, deadline=None)
@given(st.lists(TURNS, min_size=1, max_size=4), st.integers(0))
def test_order_and_identity_hold_in_a_conversation_that_grows(
    template: Template, turns: list[tuple[Role, list[int]]], seed: int
) -> None:
    random, assembler, messages = Random(seed), Assembler(template), []
    for index, (role, numbers) in enumerate(turns):
        text = "so it is"
        places = sorted(random.randrange(len(text) + 1) for _ in numbers)
        messages.append(showing(text, *zip(numbers, places, strict=True), role=role))
        prompt = assembler.assemble(asked(*messages))
        shown = [image.sha256 for message in messages for image in message.images]
        assert [image.sha256 for image in prompt.images] == shown
        places_taken = [at for image in prompt.images for at in range(image.at, image.at + image.count)]
        assert places_taken == [at for at, token in enumerate(prompt.ids) if token == vision_of(template).pad_id]
        assert [image.grid for image in prompt.images] == [vision_of(template).grid(BYTES[name]) for name in shown]
        ids = template.codec.encode("fine")
        call = recorded(index, prompt.delta, (*ids, 2), messages=prompt.messages, images=prompt.images)
        assembler.remember(call)
        messages.append(call.answer)


def test_a_model_without_eyes_says_so() -> None:
    with pytest.raises(AssemblyError, match="reads no images; send text only"):
        Assembler(text_template()).assemble(asked(showing("", (0, 0))))


def test_calls_that_differ_in_a_picture_alone_share_no_row() -> None:
    def call(index: int, name: str, ids: tuple[int, ...]) -> object:
        image = PromptImage(sha256=name, grid=(1, 4, 4), at=1, count=4)
        return recorded(index, ids, (20 + index,), images=(image,), processor_hash="p")

    first, other = call(0, NAMES[0], (1, 9, 9, 9, 9, 5)), call(1, NAMES[1], (1, 9, 9, 9, 9, 5, 20, 6))
    same = call(2, NAMES[0], (1, 9, 9, 9, 9, 5, 20, 7))
    made = rows([first, other, same])
    assert [[segment.call_id for segment in row.segments] for row in made] == [["c0", "c2"], ["c1"]]
    assert [row.images[0].sha256 for row in made] == [NAMES[0], NAMES[1]]


def test_positions_are_those_of_the_models_own_code(template: Template, folder: Path) -> None:
    prompt = Assembler(template).assemble(asked(showing("Look.And?", (2, 0), (3, 5)), showing("more", (1, 4))))
    ids = torch.tensor([prompt.ids])
    kinds = (ids == vision_of(template).pad_id).int()
    grids = torch.tensor([image.grid for image in prompt.images])
    model = object.__new__(Qwen3VLModel)
    torch.nn.Module.__init__(model)
    model.config = Qwen3VLConfig.from_pretrained(folder)
    expected, _ = model.get_rope_index(ids, kinds, image_grid_thw=grids)
    assert mrope_positions(len(prompt.ids), prompt.images, 2).tolist() == expected[:, 0].tolist()


def test_a_row_with_images_is_not_trained_blind() -> None:
    image = PromptImage(sha256=NAMES[0], grid=(1, 4, 4), at=1, count=4)
    made = rows([recorded(0, (1, 9, 9, 9, 9, 5), images=(image,), processor_hash="p")])
    with pytest.raises(TrainerError, match="row s1/0 has images"):
        RowTable(made)
