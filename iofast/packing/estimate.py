"""How large and how long: from file sizes where that is enough, from really transcoding a sample where it is not."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from iofast.containers.publish import require_free
from iofast.errors import IofastError
from iofast.kernel.contract import TranscodeRecipe
from iofast.packing.sample import Image, SampleRecipe, make_record, read_attached, read_file
from iofast.source import Source

_PAGE = 4096  # of the file system and of LMDB
_ROW = 200  # bytes of a record's keys and index row, and of its head in the journal
_STAT_SAMPLE = 256  # files; their mean size is within a few percent, in a few milliseconds
_PER_PIXEL = {"rgb": 3.0, "yuv420": 1.5}
_UNPACKED = 12  # times the file are the pixels of a JPEG of two bits a pixel, which is quality 90
_TRANSCODE_SAMPLE = 16  # images; 50 ms, paid only where the disk might be too small


def spread(images: int, most: int) -> list[int]:
    """At most `most` positions evenly over `images`."""
    count = min(images, most)
    return [(2 * i + 1) * images // (2 * count) for i in range(count)]


def mean_source_size(source: Source) -> float:
    """Bytes per file of the source, from a sample; files that cannot be looked at count as empty."""
    sizes = []
    for index in spread(len(source), _STAT_SAMPLE):
        with contextlib.suppress(OSError):
            sizes.append(os.stat(source.file(index)).st_size)
    return sum(sizes) / max(1, len(sizes))


def size_in_hand(source: Source, recipe: TranscodeRecipe) -> float:
    """Bytes per image while a worker has it: those of the file or, where they are more, of its raw pixels."""
    mean = mean_source_size(source)
    if recipe.format not in _PER_PIXEL:
        return mean
    made = _most_per_image(recipe)
    return max(mean, _UNPACKED * mean if made is None else made)


def container_size(images: int, payload: float) -> int:
    """Bytes of an LMDB file with `images` records of about `payload` bytes, all fields together."""
    rounding = _PAGE / 2 if payload > _PAGE / 2 else 0  # large values begin a page, small ones share one
    return int(images * (payload + rounding + _ROW)) + 16 * _PAGE


def peak_size(images: int, payload: float) -> int:
    """Bytes on disk when journal and container are both complete."""
    return container_size(images, payload) + int(images * (payload + _ROW))


def require_space(source: Source, recipe: TranscodeRecipe, partial: Path) -> None:
    """Raise `TargetError` unless the disk can take journal and container; what `partial` holds already counts."""
    with os.scandir(partial) as entries:
        there = sum(entry.stat().st_size for entry in entries if entry.name.startswith("journal-"))
    free = shutil.disk_usage(partial).free + there
    bound = None if source.has_files else _most_per_image(recipe)
    if bound is not None and peak_size(len(source), bound) <= free:
        return
    require_free(partial, peak_size(len(source), _measured(source, recipe)) - there)


def _most_per_image(recipe: TranscodeRecipe) -> float | None:
    """Bytes that images of this recipe hardly reach on average; None where the size of the sources decides."""
    if recipe.size is None:
        return None
    aspect = 2 if recipe.mode == "short" else 1  # more than the mean of any collection of photographs
    compressed = recipe.format in ("jpeg", "webp") and recipe.quality <= 95
    return recipe.size**2 * aspect * (1.0 if compressed else _PER_PIXEL.get(recipe.format, 4.0)) + _PAGE


def _measured(source: Source, recipe: TranscodeRecipe) -> float:
    """Mean payload bytes of a transcoded sample; where nothing can be transcoded, the sources' mean size."""
    sizes: Sequence[int] = [
        size
        for index in spread(len(source), _TRANSCODE_SAMPLE)
        if (size := _payload(source, index, recipe)) is not None
    ]
    return sum(sizes) / len(sizes) if sizes else mean_source_size(source)


def _payload(source: Source, index: int, recipe: TranscodeRecipe) -> int | None:
    files = [(field, os.fsdecode(path)) for field, path in source.files(index)]
    image = Image(index, 0, source.label(index), os.fsdecode(source.path(index)), files)
    try:
        attached = read_attached(os.fsencode(source.root), image)
        record = make_record(read_file(source.file(index)), image, SampleRecipe(recipe), attached)
    except (IofastError, OSError):
        return None
    return None if record is None else sum(map(len, record.fields.values()))
