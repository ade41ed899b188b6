"""Containers of every kind with the records of `lmdb_containers`, and tar files of other programs."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmdb_containers import Sample, sections, write

from iofast import open_reader
from iofast.containers.manifest import Description, Manifest
from iofast.containers.targets import target_of, writer_of

CLASSES = Description(classes=tuple("abcdefg"), recipe={"resize": 256}, seed=3)
SHARD = 25  # samples


def build(
    path: Path, samples: Sequence[Sample], description: Description | None = None, records: int = SHARD
) -> Manifest:
    """Write and publish a container like packing, also after a killed run."""
    description = description or Description()
    with target_of(path) as target:
        if target.interrupted:
            target.complete()
            return open_reader(path).manifest
        writer = writer_of(target, description)
        try:
            writer.resume(sections(samples, records))
            write(writer, samples, records)
            manifest = writer.finish()
        finally:
            writer.abort()
        target.publish(writer.files)
    return manifest


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def shards(container: Path) -> list[Path]:
    """The files of a set, in order."""
    return [container.parent / shard.name for shard in open_reader(container).manifest.shards]


def foreign(
    path: Path, members: Mapping[str, bytes] | Sequence[tuple[str, bytes]], kind: int = tarfile.GNU_FORMAT
) -> Path:
    """Make a tar file with Python's own module."""
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
