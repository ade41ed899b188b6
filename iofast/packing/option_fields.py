"""The options of packing: name, type, default and description of each.

`PackOptions` adds the checks, and `iofast pack` derives its command line from these fields. This module imports little,
because every start of the command line imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass
from typing import Any

from iofast.foreign.options import ForeignOptions
from iofast.option import FILTER, MOST_MEMORY, MOST_PIXELS, QUALITY, REDUCING_GAP, SUBSAMPLING, option, options_of


def _option(default: Any, text: str, metavar: str | None = None, *, usual: object = None, typed: bool = True) -> Any:
    """An option. `metavar` is its value in --help; without `typed` it is not on the command line.

    `usual` is the value that applies without the option. Its field is None then, so that an option without effect can
    be told from one that was not given.
    """
    text = text if usual is None else f"{text} (default {usual})"
    return option(default, text, metadata={"metavar": metavar, "usual": usual, "typed": typed})


@dataclass(frozen=True, kw_only=True)
class PixelFields:
    """What becomes of an image's pixels."""

    resize: int | None = _option(None, "resize to N pixels; without it no size changes", "N")
    mode: str | None = _option(None, "N is: short (default), long, exact, crop, pad, or none")
    only_shrink: bool = _option(False, "do not enlarge smaller images")
    filter: str | None = _option(None, "nearest, box, bilinear, bicubic or lanczos; all antialiased", usual=FILTER)
    format: str | None = _option(
        None, "jpeg (default with --resize), png, webp, rgb (raw), npy (all bits), or keep (default without --resize)"
    )
    quality: int | None = _option(None, "of JPEG and WebP, 1 to 100", "Q", usual=QUALITY)
    subsampling: str | None = _option(None, "of JPEG chroma: 420, 422 or 444", usual=SUBSAMPLING)
    restart: int | str | None = _option(
        None,
        "MCUs between a JPEG's restart markers, auto (the default) or none; by default kept JPEGs do not change",
        "N",
    )
    reducing_gap: float | None = _option(
        None,
        "decode large JPEGs at a reduced size, at least G times the wanted one; 0: full size",
        "G",
        usual=REDUCING_GAP,
    )
    max_pixels: int = _option(MOST_PIXELS, f"larger images fail (default {MOST_PIXELS})", "N")
    max_memory: int | str = _option(
        MOST_MEMORY, "images that would need more memory in a worker fail (default 2GiB)", "SIZE"
    )
    pad_color: str | None = _option(None, "of --mode pad: black (the default), white, gray, #rrggbb", "COLOR")
    icc: str | None = _option(
        None, "colour profiles: srgb converts (the default if an image is encoded), keep stores them, drop ignores them"
    )
    background: str | None = _option(
        None, "the colour behind transparency (default white), or drop: ignore transparency", "COLOR"
    )
    check: str | None = _option(None, "check kept files by decode (the default), or end: header and end only")
    truncated: str | None = _option(
        None, "JPEGs that end early or are damaged: strict (the default): they fail, accept: pack what can be decoded"
    )


@dataclass(frozen=True, kw_only=True)
class SampleFields:
    """The fields beside an image, and which samples are left out."""

    min_size: int | None = _option(None, "leave out images whose short side is below N pixels", "N")
    max_aspect: float | None = _option(None, "leave out images with long side over short above R", "R")
    fields: str | Sequence[str] = _option(
        (),
        "files beside a.jpg that belong to it: seg.png,txt for a.seg.png and a.txt; of a container, its fields",
        "SUFFIXES",
    )
    boxes: str | None = _option(None, "the field of JSON whose boxes follow the image, as boxes.json", "FIELD")
    box_format: str | None = _option(None, "xyxy or xywh", "FORMAT", usual="xyxy")
    keypoints: str | None = _option(None, "the field of JSON whose keypoints follow the image", "FIELD")
    upright_annotations: bool = _option(False, "masks, boxes and keypoints belong to images turned upright by EXIF")
    mask_fill: int | None = _option(None, "the masks' value in the padding of an image", "N", usual=0)
    foreign: ForeignOptions | Mapping[str, Any] | None = _option(  # noqa: RUF009 (it makes a field)
        None, "meaning of another program's container: ForeignOptions, or a mapping of its members", typed=False
    )
    notes: Mapping[str, object] | None = _option(
        None, "members to add to the manifest's recipe; anything that JSON can represent", typed=False
    )


@dataclass(frozen=True, kw_only=True)
class OrderFields:
    """The order and splits of the samples, and the columns of a manifest."""

    shuffle: int | None = _option(None, "permute each split; the same SEED, the same order", "SEED")
    split: str | Mapping[str, float] | None = _option(
        None, "draw splits by the images' paths, as in val=0.1,test=0.05; the rest is train", "NAME=SHARE"
    )
    split_seed: int | None = _option(None, "the seed of the splits", "N", usual=0)
    class_order: str = _option("lexicographic", "lexicographic (the default), natural or file", "ORDER")
    path_column: str | None = _option(None, "the manifest's column of paths", "NAME")
    label_column: str | None = _option(None, "the manifest's column of labels", "NAME")
    split_column: str | None = _option(None, "the manifest's column of splits", "NAME")
    mask_column: str | Sequence[str] = _option(
        (), "the manifest's column of mask files, which follow the image", "NAME"
    )
    file_column: str | Sequence[str] = _option((), "the manifest's column of other files, stored as they are", "NAME")
    only: str | None = _option(None, "pack only the images that failed before, as DST.errors.jsonl lists them", "FILE")


@dataclass(frozen=True, kw_only=True)
class RunFields:
    """How the run proceeds, and its target."""

    workers: int | None = _option(None, "processes (default: one per usable core)", "N")
    max_errors: int | str | None = _option(
        None, "stop when more images than this fail: a number or share (default 1% or 10)", "N"
    )
    shard_size: int | str | None = _option(
        None, "approximate size of tar and TFRecord shards: 500MB, 1GiB or bytes (default 1GB)", "SIZE"
    )
    shard_records: int | None = _option(None, "records of a shard, instead of its size", "N")
    label_base: int = _option(0, "the first class number in TFRecords; ImageNet's have 1 (default 0)", "N")
    progress: bool = _option(True, "show a progress bar if stderr is a terminal or a notebook", typed=False)
    overwrite: bool = _option(False, "replace DST if it exists")
    dry_run: bool = _option(False, "write nothing; estimate size and time from a sample")
    part: str | None = _option(None, "pack only part I of N, on any machine; slurm: the task of an array", "I/N")
    finish: bool = _option(False, "join the parts and publish DST")
    finish_when_complete: bool = _option(False, "join the parts if this one is the last")
    on: str | None = _option(None, "pack on a Ray cluster: ray, or ray://HOST:PORT", "RAY")
    ray_cpus: int | None = _option(None, "processors of each task on Ray", "N", usual=1)


GROUPS = {"pixels": PixelFields, "samples": SampleFields, "order": OrderFields, "running": RunFields}


def command_line(group: type) -> list[Field[Any]]:
    """The fields of a group that are on the command line."""
    return [each for each in options_of([group]) if each.metadata["typed"]]
