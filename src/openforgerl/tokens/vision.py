"""Images as ids: how many placeholders the model's processor puts for an image, where they stand, their positions.

Everything follows from the image's header and the settings of the model folder; no pixel is decoded here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openforgerl.errors import AssemblyError, ConfigError
from openforgerl.records import PromptImage, read_header
from openforgerl.tokens.codec import Codec, read_settings
from openforgerl.tokens.ids import Ids, as_ids

PROCESSOR = "preprocessor_config.json"
MODEL_TYPES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Their processors cut images alike."""
_WIDEST = 200
"""The processor refuses an image that is longer than this many times its other side."""

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """What a model folder says of images."""

    pad_id: int
    """One placeholder; a template prints one for an image, a prompt holds as many as the image has merged patches."""
    patch: int
    """Pixels of a patch's side."""
    merge: int
    """Patches of a side that become one id."""
    fewest_pixels: int
    most_pixels: int
    processor_hash: str

    @classmethod
    def load(cls, folder: Path, codec: Codec) -> Vision | None:
        """None for a model that reads no images. Raises ConfigError, which names the file."""
        config, file = read_settings(folder / "config.json"), folder / PROCESSOR
        if config.get("model_type") not in MODEL_TYPES or not file.exists():
            return None
        settings, pad_id = read_settings(file), config.get("image_token_id")
        size = settings.get("size")
        sizes: Mapping[str, object] = size if isinstance(size, dict) else {}
        if not isinstance(pad_id, int) or pad_id not in codec.special_ids:
            raise ConfigError(f"{folder / 'config.json'}: image_token_id {pad_id!r} is no control token of tokenizer")
        return cls(
            pad_id=pad_id,
            patch=_count(file, settings, "patch_size"),
            merge=_count(file, settings, "merge_size"),
            fewest_pixels=_count(file, {**sizes, **settings}, "min_pixels", "shortest_edge"),
            most_pixels=_count(file, {**sizes, **settings}, "max_pixels", "longest_edge"),
            processor_hash=hashlib.sha256(file.read_bytes()).hexdigest()[:32],
        )

    def grid(self, data: bytes) -> Grid:
        """Patches in time, height and width. Raises AssemblyError for an image that the processor refuses."""
        header = read_header(data)
        long, short = max(header.width, header.height), min(header.width, header.height)
        if long > _WIDEST * short:
            message = f"an image of {header.width} x {header.height} pixels is too narrow; send one of at most 200 : 1"
            raise AssemblyError(message, code="unsupported_content")
        height, width = self._resized(header.height, header.width)
        return 1, height // self.patch, width // self.patch

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Both sides a multiple of a merged patch, the area within the limits, the shape about kept.

        In the steps and the rounding of the processor (smart_resize of Qwen2-VL).
        """
        unit = self.patch * self.merge
        new_height, new_width = round(height / unit) * unit, round(width / unit) * unit
        if new_height * new_width > self.most_pixels:
            shrink = math.sqrt(height * width / self.most_pixels)
            sides = (math.floor(side / shrink / unit) * unit for side in (height, width))
            new_height, new_width = (max(unit, side) for side in sides)
        elif new_height * new_width < self.fewest_pixels:
            grow = math.sqrt(self.fewest_pixels / (height * width))
            new_height, new_width = (math.ceil(side * grow / unit) * unit for side in (height, width))
        return new_height, new_width

    def count(self, grid: Grid) -> int:
        """Placeholders of an image."""
        return math.prod(grid) // self.merge**2

    def expanded(self, ids: Ids, grids: Sequence[Grid]) -> Ids:
        """Each placeholder as many times as its image has. Raises AssemblyError where there are more or fewer."""
        pads = np.flatnonzero(ids == self.pad_id)
        if len(pads) != len(grids):
            message = f"the chat template shows {len(pads)} of {len(grids)} images; send text only in such a message"
            raise AssemblyError(message, code="unsupported_content")
        times = np.ones(len(ids), dtype=np.int64)
        times[pads] = [self.count(grid) for grid in grids]
        return as_ids(np.repeat(ids, times).tolist())

    def placed(self, ids: Sequence[int], images: Sequence[tuple[str, Grid]]) -> tuple[PromptImage, ...]:
        """The images, (sha256, grid) in order, where they stand in a prompt. Raises AssemblyError.

        A model may sample a placeholder: a run of another length is text.
        """
        runs = self._runs(ids)
        found: list[PromptImage] = []
        for sha256, grid in images:
            count = self.count(grid)
            at = next((start for start, stop in runs if stop - start == count), None)
            if at is None:
                raise AssemblyError(f"image {sha256[:12]}: no {count} placeholders in the prompt stand for it")
            found.append(PromptImage(sha256=sha256, grid=grid, at=at, count=count))
        return tuple(found)

    def _runs(self, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        where = np.flatnonzero(np.array(ids) == self.pad_id)
        starts = [place for place, gap in enumerate(np.diff(where, prepend=-2)) if gap > 1]
        bounds = pairwise([*starts, len(where)])
        return iter([(int(where[first]), int(where[last - 1]) + 1) for first, last in bounds])


def _count(file: Path, settings: Mapping[str, object], *names: str) -> int:
    value = next((settings[name] for name in names if settings.get(name) is not None), None)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{file}: {names[0]} is {value!r}; it must be a whole number of at least 1")
    return value


def mrope_positions(length: int, images: Sequence[PromptImage], merge: int) -> NDArray[np.int64]:
    """(3, length): positions in time, height and width, as Qwen-VL models are trained with.

    An id of text has three equal ones; an image has those of its merged patches, and takes as many as its longer side.
    """
    positions = np.empty((3, length), dtype=np.int64)
    at = position = 0
    for image in images:
        text = image.at - at
        positions[:, at : image.at] = position + np.arange(text)
        position += text
        frames, height, width = image.grid[0], image.grid[1] // merge, image.grid[2] // merge
        patches = np.indices((frames, height, width)).reshape(3, -1)
        at = image.at + image.count
        positions[:, image.at : at] = position + patches
        position += max(height, width)
    positions[:, at:] = position + np.arange(length - at)
    return positions
