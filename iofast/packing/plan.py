"""The plan of a packing run: its settings and chunks, stored so that a killed run can be resumed.

Everything in it decides the bytes of the result or the ends of chunks. Other options (workers, error budget) may differ
between a run and the one that resumes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from iofast import kernel
from iofast.containers.publish import Target
from iofast.containers.shard_target import ShardTarget, shard_bytes
from iofast.errors import TargetError
from iofast.packing.options import PackOptions, as_option
from iofast.source import Source
from iofast.version import __version__

VERSION = 3
MAX_CHUNK = 32  # images
CHUNK_BYTES = 8 << 20  # approximate size of a chunk; a worker holds its records in memory
_CHUNKS = 64  # at least so many, so that a small source keeps all workers busy


@dataclass(frozen=True, slots=True)
class PackPlan:
    """`images` in chunks of `chunk`, from a source with the fingerprint `source`, made with `settings`.

    `shard_records`: the most positions of a shard; None for LMDB, and until the run begins. `parts`: how many parts of
    the run are packed on their own; None for a run as a whole.
    """

    images: int
    chunk: int
    source: str
    settings: Mapping[str, object]
    shard_records: int | None = None
    parts: int | None = None
    version: int = VERSION

    @property
    def chunks(self) -> int:
        return -(-self.images // self.chunk)

    def span(self, chunk: int) -> tuple[int, int]:
        """The positions [start, stop) of a chunk."""
        return chunk * self.chunk, min((chunk + 1) * self.chunk, self.images)

    def part(self, images: int) -> PackPlan:
        """The plan of a part with so many images."""
        return replace(self, images=images, chunk=max(1, min(self.chunk, images // _CHUNKS)))

    def digest(self) -> str:
        """A hash that differs for different work."""
        members = {**asdict(self), "chunk": None, "shard_records": None}
        return hashlib.sha256(json.dumps(members, sort_keys=True).encode()).hexdigest()

    def check_same(self, old: PackPlan, folder: Path) -> None:
        """Raise `TargetError`, naming the difference, if work begun with the plan `old` cannot be resumed."""
        if self.parts != old.parts:
            raise TargetError(
                f"{folder} holds the work of a run {_in_parts(old.parts)}, expected one {_in_parts(self.parts)}: "
                "go on as it began, or delete the folder to start anew"
            )
        for name in sorted({*self.settings, *old.settings}):
            now, then = self.settings.get(name), old.settings.get(name)
            if now != then:
                raise _other(folder, f"{as_option(name, then)}, not {now}")
        if self.images != old.images:
            raise _other(folder, f"{old.images:,} images, not {self.images:,}")
        if self.source != old.source:
            raise _other(folder, "the source as it was before it changed (names, labels, splits or files)")


def make_plan(source: Source, settings: Mapping[str, object], mean_size: float) -> PackPlan:
    """Make the plan for `source` (in packing order); `mean_size`: bytes of an image in a worker's memory."""
    by_size = int(CHUNK_BYTES / max(1.0, mean_size))
    chunk = max(1, min(MAX_CHUNK, len(source) // _CHUNKS, by_size))
    return PackPlan(len(source), chunk, source.fingerprint(), settings)


def load_plan(path: Path) -> PackPlan | None:
    """Read the plan at `path`; None if there is none of this version."""
    try:
        value = json.loads(path.read_text())
        plan = PackPlan(**value)
    except (OSError, ValueError, TypeError):
        return None
    return plan if plan.version == VERSION and plan.chunk > 0 else None


def recipe(options: PackOptions) -> dict[str, object]:
    """The manifest's recipe: all options that shape payloads, and versions of the software."""
    import PIL

    facts = kernel.describe()
    software = {"iofast": __version__, "kernel": kernel.backend, "pillow": PIL.__version__}
    if facts["libjpeg-turbo"]:
        software["libjpeg-turbo"] = facts["libjpeg-turbo"]
    return {**options.shaping(), **software}


def settings(options: PackOptions, place: Target) -> dict[str, object]:
    """The settings that must be equal when a run is resumed."""
    chosen: dict[str, object] = {"shuffle": options.shuffle, "class_order": options.class_order}
    if isinstance(place, ShardTarget):
        chosen |= {"shard_size": shard_bytes(options.shard_size, place), "shard_records": options.shard_records}
    return {**recipe(options), **chosen}


def shared_settings(sources: Sequence[str], options: PackOptions, place: Target) -> dict[str, object]:
    """The settings on which all parts of a run must agree. They do not list the sources, so names stand for them."""
    columns = {name: getattr(options, name) for name in ("path_column", "label_column", "split_column", "only")}
    named = ", ".join(os.path.basename(os.path.abspath(source)) for source in sources)
    return {**settings(options, place), **columns, "source": named}


def _in_parts(count: int | None) -> str:
    return "without parts" if count is None else f"in {count:,} parts"


def _other(folder: Path, difference: str) -> TargetError:
    return TargetError(
        f"{folder} holds the work of a run with {difference}: give that command again to resume it, "
        "or delete the folder to start anew"
    )
