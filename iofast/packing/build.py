"""Write the records of finished chunks in packing order, while workers pack further chunks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from iofast.containers.base import Description, Reader, Writer
from iofast.containers.journal import read_block
from iofast.containers.manifest import Manifest
from iofast.errors import SourceError, WorkerError
from iofast.packing.pack_work import PackWork

# Blocks written per finished chunk. With one, a single slow chunk would leave a backlog to the end; with many, a
# resumed run with thousands of finished chunks would not feed its workers meanwhile.
_PACE = 4


class Builder:
    """Fill `writer` from journal blocks. Memory: one block, and the places of chunks that wait for an earlier one.

    If a writer can resume, a journal is removed when all its records are committed; `in_use` names the journals to
    which workers still append.
    """

    def __init__(self, writer: Writer, work: PackWork, in_use: Callable[[], Collection[Path]]) -> None:
        self._writer, self._work, self._in_use = writer, work, in_use
        self._places: dict[int, tuple[Path, int]] = {}
        self._left: Counter[Path] = Counter()  # blocks of a journal that are not committed
        self._written: deque[tuple[int, Path]] = deque()  # last position and journal of written blocks
        self._splits = [name for name, _, _ in work.source.splits]
        self._last = work.first - 1
        self.next = 0  # the first chunk that is not completely written
        self.packed = 0
        self.holes: list[int] = []  # positions before the last record that have no record

    def join(self, part: Reader) -> None:
        """Append the records of the next part of the run."""
        self._writer.join(part, self._count)
        self.next = self._work.plan.chunks  # none is left to be written

    def resume(self, stop: int | None = None) -> None:
        """Adopt what an earlier run has written, up to but excluding position `stop`."""
        kept = self._writer.resume(self._count, stop).position
        self.holes += range(self._last + 1, kept + 1)
        self._last = max(self._last, kept)
        done = self._last + 1 - self._work.first
        plan = self._work.plan
        self.next = plan.chunks if done == plan.images else done // plan.chunk

    def add(self, chunk: int, journal: Path, offset: int) -> None:
        """Register a finished chunk."""
        self._places[chunk] = journal, offset
        self._left[journal] += 1

    def advance(self, most: int = _PACE) -> None:
        """Write up to `most` of the next blocks that are finished."""
        for _ in range(most):
            place = self._places.pop(self.next, None)
            if place is None:
                return
            self._write(*place)
            self._written.append((self._work.span(self.next)[-1], place[0]))
            self.next += 1
            if self._writer.resumes:
                self._remove_committed()

    def finish(self, description: Description) -> Manifest:
        """Write the rest, then index and manifest."""
        chunks = self._work.plan.chunks
        self.advance(chunks - self.next)
        if self.next < chunks:
            raise WorkerError(f"chunk {self.next} of {chunks} was never finished")
        if not self.packed and self._work.whole is None:
            images = len(self._work.source)
            raise SourceError(f"no image of {images:,} is left: min_size and max_aspect admit none")
        return self._writer.finish(description)

    def _write(self, journal: Path, offset: int) -> None:
        for record in read_block(journal, offset).records:
            if record.position <= self._last:  # written by an earlier run
                continue
            fields = {**self._work.source.extra(record.position - self._work.first), **record.fields}
            self._writer.write(record.position, fields, record.info, self._splits[record.split])
            self._count([record.position])

    def _count(self, positions: Iterable[int]) -> None:
        """Count records of the writer."""
        for position in positions:
            self.holes += range(self._last + 1, position)
            self._last = position
            self.packed += 1

    def _remove_committed(self) -> None:
        """Remove journals whose records are all in full shards; a resumed run writes other shards again."""
        while self._written and self._written[0][0] <= self._writer.committed:
            self._left[self._written.popleft()[1]] -= 1
        for journal in [journal for journal, left in self._left.items() if not left]:
            if journal not in self._in_use():
                journal.unlink(missing_ok=True)
                del self._left[journal]
