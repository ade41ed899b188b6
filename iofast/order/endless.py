"""The order of a sampler that never ends: an epoch without end, with only a stretch of it in memory."""

from __future__ import annotations

import os
from collections import deque

import numpy as np

from iofast.errors import OptionError
from iofast.order.base import Indices, Part, checksum
from iofast.order.permutation import MAX_SAMPLES
from iofast.order.runs import Runs, RunsOrder

HEAD = 1 << 12  # indices at the start of an epoch that its checksum covers
STRETCH = 1 << 16  # positions before the newest that stay in memory, at least
BATCHES = 400  # the same in batches: readahead is at most 256 ahead of the consumer, threads and device 66
BLOCK = 1 << 20  # indices taken at once while skipping to a resumed position
EPOCHS = 2  # with a run in progress


class Endless(RunsOrder):
    """The indices of a sampler, taken as batches need them; `length` None for a sampler without a length.

    Position p is the p-th index of the epoch's run. A resume therefore runs the sampler again, skips to its position,
    and needs the same indices again: `checksum` covers the first 4,096. Each epoch is another run.
    """

    def __init__(self, runs: Runs, length: int | None, global_batch: int) -> None:
        self._batch, self._end = global_batch, length
        self._streams: dict[tuple[int, int], _SamplerRun] = {}  # by process and epoch: no run survives a fork
        super().__init__(runs, length or MAX_SAMPLES)

    @property
    def endless(self) -> bool:
        return self._end is None

    def checksum(self, epoch: int) -> str:
        with self._lock():
            return self._stream(epoch).checksum

    def _indices(self, part: Part) -> Indices:
        with self._lock():
            stream = self._stream(part.epoch)
            if part.least < stream.first:
                stream = self._begin(part.epoch)
            try:
                return stream.at(part)
            except BaseException:
                del self._streams[os.getpid(), part.epoch]  # a failed run cannot continue
                raise

    def _replacement(self, part: Part, attempts: Indices) -> Indices:
        """Samples of the same global batch, as the rest of the epoch is not in memory."""
        first = part.positions - part.positions % self._batch
        stops = np.minimum(self._batch, self.length - first)
        return self.indices(part.epoch, first + self._drawn(part, attempts, stops))

    def _stream(self, epoch: int) -> _SamplerRun:
        return self._streams.get((os.getpid(), epoch)) or self._begin(epoch)

    def _begin(self, epoch: int) -> _SamplerRun:
        stream = _SamplerRun(self._runs, epoch, max(STRETCH, BATCHES * self._batch), self._end)
        self._streams.pop((os.getpid(), epoch), None)  # the newest run stands last
        self._streams[os.getpid(), epoch] = stream
        while len(self._streams) > EPOCHS:
            del self._streams[next(iter(self._streams))]
        return stream

    def __reduce__(self) -> tuple[type, tuple[Runs, int | None, int]]:
        return type(self), (self._runs, self._end, self._batch)


class _SamplerRun:
    """One run, as far as it was needed. Positions `first` to `stop` - 1 are in memory: at least the last `keep`."""

    def __init__(self, runs: Runs, epoch: int, keep: int, end: int | None) -> None:
        self._runs, self._epoch, self._keep, self._end = runs, epoch, keep, end
        self._run = runs.begin(epoch)
        self._blocks: deque[Indices] = deque()
        self.first = self.stop = 0
        self._take(HEAD if end is None else min(HEAD, end))
        self.checksum = checksum(self._blocks[0])

    def at(self, part: Part) -> Indices:
        """The indices at positions from `first` on."""
        while self.stop <= part.most:
            self._take(min(BLOCK, part.most + 1 - self.stop))
            self._forget(min(part.least, self.stop - self._keep))
        start, begin, blocks = self.first, 0, list[Indices]()
        for block in self._blocks:
            if start <= part.most and start + len(block) > part.least:
                begin = begin if blocks else start
                blocks.append(block)
            start += len(block)
        indices: Indices = np.concatenate(blocks)[part.positions - begin]
        return indices

    def _take(self, count: int) -> None:
        block = self._runs.take(self._run, count)
        self._runs.check(block, self._epoch, self.stop)
        self._blocks.append(block)
        self.stop += len(block)
        if len(block) < count:
            length = "no length" if self._end is None else f"a length of {self._end}"
            raise OptionError(
                f"{self._runs.name} has {length} and ended after {self.stop} indices in epoch {self._epoch}: "
                "give it a __len__ with their number"
            )

    def _forget(self, before: int) -> None:
        while self._blocks and self.first + len(self._blocks[0]) <= before:
            self.first += len(self._blocks.popleft())
