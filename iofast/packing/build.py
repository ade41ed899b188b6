"""The builder: takes finished chunks in any order and writes their records in packing order, while workers go on."""

from __future__ import annotations

from pathlib import Path

from iofast.containers.base import Description, Writer
from iofast.containers.journal import read_block
from iofast.containers.manifest import Manifest
from iofast.errors import SourceError, WorkerError
from iofast.source import Source

# Blocks written per finished chunk. More than one, or a single slow chunk would leave a backlog to the end; few, so
# that a resumed run with thousands of finished chunks feeds its workers meanwhile.
_PACE = 4


class Builder:
    """Fills `writer` from journal blocks. Memory: one block, and the places of chunks that wait for an earlier one."""

    def __init__(self, writer: Writer, source: Source, chunks: int) -> None:
        self._writer, self._source, self._chunks = writer, source, chunks
        self._places: dict[int, tuple[Path, int]] = {}
        self._next = 0
        self._splits = [name for name, _, _ in source.splits]
        self.packed = 0

    def add(self, chunk: int, journal: Path, offset: int) -> None:
        """A chunk is finished."""
        self._places[chunk] = journal, offset

    def advance(self, most: int = _PACE) -> None:
        """Write the next blocks, if they are there, `most` of them."""
        for _ in range(most):
            place = self._places.pop(self._next, None)
            if place is None:
                return
            self._write(*place)
            self._next += 1

    def finish(self, description: Description) -> Manifest:
        """Write the rest, then index and manifest."""
        self.advance(self._chunks - self._next)
        if self._next < self._chunks:
            raise WorkerError(f"chunk {self._next} of {self._chunks} was never finished")
        if not self.packed:
            raise SourceError(f"not one of {len(self._source):,} images is left: min_size and max_aspect admit none")
        return self._writer.finish(description)

    def _write(self, journal: Path, offset: int) -> None:
        for record in read_block(journal, offset).records:
            extra = self._source.extra(record.position)
            fields = {**extra, **record.fields} if extra else record.fields
            self._writer.write(record.position, fields, record.info, self._splits[record.split])
            self.packed += 1
