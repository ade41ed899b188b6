"""What the packing process and its workers send each other, pickled, on pipes.

To a worker go `("setup", (origin, recipe))` and `("chunk", job)`. From it come `("ready", None)`, then `("done", done)`
for each chunk, `("begin", position)` for each image of a careful one, `("alive", None)` now and then, and `("fatal",
error)` when no further image can succeed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from iofast.record import ImageInfo

Message = tuple[str, Any]


class PackedRecord(NamedTuple):
    """One packed record. `crcs`: CRC32C of each payload; None if they are not known."""

    position: int
    info: ImageInfo
    fields: dict[str, bytes]
    crcs: Mapping[str, int] | None


@dataclass(slots=True)
class ChunkJob:
    """A chunk of work: `images` are `sample.Image`. `skip` maps images that kill workers to reasons.

    `suspects` are images that a worker had announced when it died; a second death proves the fault. Both by position.
    """

    chunk: int
    images: Sequence[Any]
    careful: bool = False
    skip: dict[int, str] = field(default_factory=dict)
    suspects: set[int] = field(default_factory=set)


class Done(NamedTuple):
    """A finished chunk of `images`: its records, (position, reason) of failures, and the bytes of its files.

    `left_out`: the number of images that `min_size` and `max_aspect` do not admit.
    """

    chunk: int
    images: int
    records: Sequence[PackedRecord]
    failed: Sequence[tuple[int, str]]
    bytes_in: int
    left_out: int
