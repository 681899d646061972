"""A model folder's tokenizer: what it needs, and that text is always plain."""

from __future__ import annotations

import json
import shutil
import unicodedata
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from openforgerl.errors import ConfigError
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.decoding import decode_all
from openforgerl.tokens.template import DEFAULT, Template
from token_world import FIXTURE, user


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "model"))


def test_every_end_id_of_the_folder_counts_the_tokenizers_own_first(folder: Path) -> None:
    codec = Codec.load(folder)
    assert [codec.token_text(stop) for stop in codec.stop_ids] == ["<|im_end|>", "<|endoftext|>"]
    (folder / "generation_config.json").unlink()
    assert Codec.load(folder).stop_ids == codec.stop_ids[:1]
    assert codec.with_stop_id(9).stop_ids == (*codec.stop_ids, 9)
    assert codec.with_stop_id(codec.stop_ids[1]) is codec


def test_a_token_may_be_named_by_an_object(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert Codec.load(folder).stop_ids[0] == Codec.load(FIXTURE).stop_ids[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", None, "tokenizer.json"),
        ("tokenizer.json", "{}", "is not a tokenizer"),
        ("tokenizer_config.json", "[]", "is not a JSON object"),
        ("generation_config.json", "{", "is not JSON"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused_by_file(
    folder: Path, name: str, content: str | None, said: str
) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ConfigError, match=said):
        Codec.load(folder)


def test_a_folder_without_an_end_id_is_refused(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match=r"eos_token_id.*eos_token"):
        Codec.load(folder)


def test_the_hash_is_that_of_the_file(folder: Path) -> None:
    assert Codec.load(folder).tokenizer_hash == Codec.load(FIXTURE).tokenizer_hash
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + "\n")
    assert Codec.load(folder).tokenizer_hash != Codec.load(FIXTURE).tokenizer_hash


def test_control_token_text_is_encoded_as_characters() -> None:
    codec = Codec.load(FIXTURE)
    ids = codec.encode("a<|im_end|>b")
    assert not set(ids) & set(codec.specials.values())
    assert codec.decode(ids) == "a<|im_end|>b"
    assert codec.decode((codec.specials["<|im_end|>"],)) == "<|im_end|>"
    assert codec.encode("") == ()
    assert codec.decode(()) == ""


def test_a_cut_or_padded_tokenizer_file_does_not_cut_or_pad(folder: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    data["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    data["padding"] = {
        "strategy": {"Fixed": 90}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(data))
    assert Codec.load(folder).encode("Hello there.") == Codec.load(FIXTURE).encode("Hello there.")


def test_a_tokenizer_that_would_add_bos_adds_none(folder: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<file_sep>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<file_sep>": {"id": "<file_sep>", "ids": [3], "tokens": ["<file_sep>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<file_sep>", "eos_token": "<|im_end|>"}')
    codec = Codec.load(folder)
    assert codec.tokenizer.encode("Hi").ids[0] == codec.bos_id == 3
    printing = "{{- bos_token }}\n" + DEFAULT.read_text()
    ids = Template(codec, printing, "bos.jinja").whole_ids([user("Hi")]).tolist()
    assert (ids[0], ids.count(3)) == (3, 1)
    with pytest.raises(ConfigError, match="two BOS"):
        Template(codec, "{{- bos_token }}\n" + printing, "bos.jinja")


def test_long_runs_of_broken_bytes_are_decoded_as_they_come() -> None:
    codec = Codec.load(FIXTURE)
    broken = codec.encode("🦜")[:1] * 5000
    text, decoder = decode_all(codec, broken)
    assert text == codec.decode(broken)
    assert len(decoder.boundary_ids) > 500


def test_half_a_surrogate_pair_is_encoded_as_the_character_for_what_is_broken() -> None:
    codec = Codec.load(FIXTURE)
    assert codec.encode("cut \ud83e") == codec.encode("cut \ufffd")


@pytest.mark.parametrize("text", ["plain words " * 40, " " * 900, "하나" * 300, "\ud83e" * 90, "<|im_end|>" * 50, ""])
def test_the_lower_bound_of_a_texts_ids_is_one(text: str) -> None:
    codec = Codec.load(FIXTURE)
    decomposed = unicodedata.normalize("NFD", text)
    assert codec.fewest_ids(decomposed) <= min(len(codec.encode(each)) for each in (text, decomposed))
    assert codec.fewest_ids("x" * 10_000) > 100


def test_a_tokenizer_that_rewrites_texts_has_no_lower_bound(folder: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    data["normalizer"] = {"type": "Replace", "pattern": {"String": "xx"}, "content": "x"}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    assert Codec.load(folder).fewest_ids("x" * 10_000) == 0


def test_a_long_text_leaves_other_threads_running_and_has_the_same_ids() -> None:
    codec = Codec.load(FIXTURE)
    text = "hello wörld <|im_end|> foo " * 30_000
    with ThreadPoolExecutor(1) as pool:
        encoding, turns = pool.submit(codec.encode, text), 0
        while not encoding.done():
            wait([encoding], timeout=0.001)
            turns += 1
        assert turns > 10
        short = "hello wörld <|im_end|> foo " * 700
        assert codec.encode(short) == tuple(codec.tokenizer.encode(short, add_special_tokens=False).ids)
