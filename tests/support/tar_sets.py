"""Sets of tar shards for tests, of the records that `lmdb_containers` makes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lmdb_containers import Sample

from iofast.containers.base import Description
from iofast.containers.manifest import Manifest
from iofast.containers.shard_target import ShardTarget
from iofast.containers.shards import ShardCut
from iofast.containers.tar import TarWriter

SHARD = 200_000  # bytes: some dozens of samples


def write(writer: TarWriter, samples: Iterable[Sample]) -> None:
    for position, fields, info, split in samples:
        writer.write(position, fields, info, split)


def build(
    path: Path, samples: Sequence[Sample], description: Description | None = None, shard_size: int = SHARD
) -> Manifest:
    with ShardTarget(path, ".tar") as target:
        writer = TarWriter(target.partial, path.name, cut=ShardCut(shard_size))
        write(writer, samples)
        manifest = writer.finish(description or Description())
        target.publish(writer.files)
    return manifest


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def foreign(
    path: Path, members: Mapping[str, bytes] | Sequence[tuple[str, bytes]], kind: int = tarfile.GNU_FORMAT
) -> Path:
    """A tar file as Python's own module makes it."""
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
