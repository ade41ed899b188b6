"""The options of packing: name, type, default and description of each.

`PackOptions` adds the checks, and `iofast pack` derives its command line from these fields. This module imports little,
because every start of the command line imports it.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass
from typing import Any

from iofast.foreign.options import ForeignOptions
from iofast.option import FILTER, MOST_MEMORY, MOST_PIXELS, QUALITY, REDUCING_GAP, SUBSAMPLING, flag, options_of
from iofast.source import SourceOptions


@dataclass(frozen=True, kw_only=True)
class PixelFields:
    """What becomes of an image's pixels."""

    resize: int | None = flag(None, "resize to N pixels; without it no size changes", "N")
    mode: str | None = flag(None, "N is: short (default), long, exact, crop, pad, or none")
    only_shrink: bool = flag(False, "do not enlarge smaller images")
    filter: str | None = flag(None, "nearest, box, bilinear, bicubic or lanczos; all antialiased", usual=FILTER)
    format: str | None = flag(
        None, "jpeg (default with --resize), png, webp, rgb (raw), npy (all bits), or keep (default without --resize)"
    )
    quality: int | None = flag(None, "of JPEG and WebP, 1 to 100", "Q", usual=QUALITY)
    subsampling: str | None = flag(None, "of JPEG chroma: 420, 422 or 444", usual=SUBSAMPLING)
    restart: int | str | None = flag(
        None,
        "MCUs between a JPEG's restart markers, auto (the default) or none; by default kept JPEGs do not change",
        "N",
    )
    reducing_gap: float | None = flag(
        None,
        "decode large JPEGs at a reduced size, at least G times the wanted one; 0: full size",
        "G",
        usual=REDUCING_GAP,
    )
    max_pixels: int = flag(MOST_PIXELS, f"larger images fail (default {MOST_PIXELS})", "N")
    max_memory: int | str = flag(
        MOST_MEMORY, "images that would need more memory in a worker fail (default 2GiB)", "SIZE"
    )
    pad_color: str | None = flag(None, "of --mode pad: black (the default), white, gray, #rrggbb", "COLOR")
    icc: str | None = flag(
        None, "colour profiles: srgb converts (the default if an image is encoded), keep stores them, drop ignores them"
    )
    background: str | None = flag(
        None, "the colour behind transparency (default white), or drop: ignore transparency", "COLOR"
    )
    check: str | None = flag(None, "check kept files by decode (the default), or end: header and end only")
    truncated: str | None = flag(
        None, "JPEGs that end early or are damaged: strict (the default): they fail, accept: pack what can be decoded"
    )


@dataclass(frozen=True, kw_only=True)
class SampleFields:
    """The fields beside an image, and which samples are left out."""

    min_size: int | None = flag(None, "leave out images whose short side is below N pixels", "N")
    max_aspect: float | None = flag(None, "leave out images with long side over short above R", "R")
    boxes: str | None = flag(None, "the field of JSON whose boxes follow the image, as boxes.json", "FIELD")
    box_format: str | None = flag(None, "xyxy or xywh", "FORMAT", usual="xyxy")
    keypoints: str | None = flag(None, "the field of JSON whose keypoints follow the image", "FIELD")
    upright_annotations: bool = flag(False, "masks, boxes and keypoints belong to images turned upright by EXIF")
    mask_fill: int | None = flag(None, "the masks' value in the padding of an image", "N", usual=0)
    foreign: ForeignOptions | Mapping[str, Any] | None = flag(  # noqa: RUF009 (it makes a field)
        None, "meaning of another program's container: ForeignOptions, or a mapping of its members", typed=False
    )
    notes: Mapping[str, object] | None = flag(
        None, "members to add to the manifest's recipe; anything that JSON can represent", typed=False
    )


@dataclass(frozen=True, kw_only=True)
class OrderFields:
    """The order and splits of the samples."""

    shuffle: int | None = flag(None, "permute each split; the same SEED, the same order", "SEED")
    split: str | Mapping[str, float] | None = flag(
        None, "draw splits by the images' paths, as in val=0.1,test=0.05; the rest is train", "NAME=SHARE"
    )
    split_seed: int | None = flag(None, "the seed of the splits", "N", usual=0)
    only: str | None = flag(None, "pack only the images that failed before, as DST.errors.jsonl lists them", "FILE")


@dataclass(frozen=True, kw_only=True)
class RunFields:
    """How the run proceeds, and its target."""

    workers: int | None = flag(None, "processes (default: one per usable core)", "N")
    max_errors: int | str | None = flag(
        None, "stop when more images than this fail: a number or share (default 1% or 10)", "N"
    )
    shard_size: int | str | None = flag(
        None, "approximate size of tar and TFRecord shards: 500MB, 1GiB or bytes (default 1GB)", "SIZE"
    )
    shard_records: int | None = flag(None, "records of a shard, instead of its size", "N")
    label_base: int = flag(0, "the first class number in TFRecords; ImageNet's have 1 (default 0)", "N")
    progress: bool = flag(True, "show a progress bar if stderr is a terminal or a notebook", typed=False)
    overwrite: bool = flag(False, "replace DST if it exists")
    dry_run: bool = flag(False, "write nothing; estimate size and time from a sample")
    part: str | None = flag(None, "pack only part I of N, on any machine; slurm: the task of an array", "I/N")
    finish: bool = flag(False, "join the parts and publish DST")
    finish_when_complete: bool = flag(False, "join the parts if this one is the last")
    on: str | None = flag(None, "pack on a Ray cluster: ray, or ray://HOST:PORT", "RAY")
    ray_cpus: int | None = flag(None, "processors of each task on Ray", "N", usual=1)


GROUPS = {
    "pixels": PixelFields,
    "samples": SampleFields,
    "source": SourceOptions,
    "order": OrderFields,
    "running": RunFields,
}


def command_line(group: type) -> list[Field[Any]]:
    """The fields of a group that are on the command line."""
    return [each for each in options_of([group]) if each.metadata["typed"]]
