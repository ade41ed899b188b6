"""Sets of TFRecord shards for the tests: written from the records that the tests of LMDB use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmdb_containers import Sample

from iofast.containers.base import Description
from iofast.containers.manifest import Manifest
from iofast.containers.shard_target import ShardTarget
from iofast.containers.shards import ShardCut
from iofast.containers.tfrecord import TfrecordReader, TfrecordWriter

CLASSES = Description(classes=tuple("abcdefg"), recipe={"resize": 256}, seed=3)
SIZE = 60_000  # bytes of a shard: a dozen records


def build(
    path: Path, samples: Sequence[Sample], description: Description | None = None, *, size: int = SIZE
) -> Manifest:
    """Write and publish a set, as packing does it: also where an earlier run was killed."""
    description = description or Description()
    with ShardTarget(path, path.suffix) as target:
        if target.interrupted:
            target.complete()
            with TfrecordReader(path) as reader:
                return reader.manifest
        writer = TfrecordWriter(target.partial, path.name, description, cut=ShardCut(size))
        try:
            position = writer.resume().position
            for sample in samples:
                if sample[0] > position:
                    writer.write(*sample)
            manifest = writer.finish(description)
        finally:
            writer.abort()
        target.publish(writer.files)
    return manifest


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def shards(container: Path) -> list[Path]:
    return [container.parent / shard.name for shard in TfrecordReader(container).manifest.shards]
