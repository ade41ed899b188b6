"""The order of a sampler that never ends: one epoch without an end, of which only a stretch is in memory."""

from __future__ import annotations

import os
import threading
from collections import deque

import numpy as np

from iofast.errors import OptionError
from iofast.order.base import Indices, Order, Part, checksum
from iofast.order.permutation import MAX_SAMPLES
from iofast.order.runs import Runs

HEAD = 1 << 12  # indices at the start of an epoch, which its checksum is of
STRETCH = 1 << 16  # positions behind the newest that stay in memory, at least
BATCHES = 400  # the same in batches: readahead is 256 ahead of the consumer at most, threads and device 66
BLOCK = 1 << 20  # indices that are taken at once, on the way to a place far behind the start
EPOCHS = 2  # whose runs go on side by side


class Endless(Order):
    """What a sampler gives, taken as batches ask for it; `length` None for one that has no length.

    Position p is the p-th index of the epoch's run. So a resume runs the sampler anew, passes over what was returned
    before, and needs the same indices again: `checksum` is that of the first 4,096. Another epoch is another run.
    """

    mode = "sampled"

    def __init__(self, runs: Runs, length: int | None, global_batch: int) -> None:
        self._runs, self._batch, self._endless = runs, global_batch, length is None
        self._streams: dict[tuple[int, int], _Run] = {}  # by process and epoch: no run survives a fork
        self._locks: dict[int, threading.Lock] = {}
        super().__init__(runs.count, length or MAX_SAMPLES, runs.seed)

    @property
    def endless(self) -> bool:
        return self._endless

    @property
    def sharded(self) -> tuple[int, int] | None:
        return self._runs.share

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
                del self._streams[os.getpid(), part.epoch]  # a run that failed cannot go on
                raise

    def _replacement(self, part: Part, attempts: Indices) -> Indices:
        """Samples of the same global batch: the whole epoch is not there to be drawn from."""
        first = part.positions - part.positions % self._batch
        stops = np.minimum(self._batch, self.length - first)
        return self.indices(part.epoch, first + self._drawn(part, attempts, stops))

    def _lock(self) -> threading.Lock:
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def _stream(self, epoch: int) -> _Run:
        found = self._streams.get((os.getpid(), epoch))
        return self._begin(epoch) if found is None else found

    def _begin(self, epoch: int) -> _Run:
        end = None if self._endless else self.length
        stream = _Run(self._runs, epoch, max(STRETCH, BATCHES * self._batch), end)
        self._streams.pop((os.getpid(), epoch), None)  # the newest run stands last
        self._streams[os.getpid(), epoch] = stream
        while len(self._streams) > EPOCHS:
            del self._streams[next(iter(self._streams))]
        return stream

    def _options(self) -> dict[str, object]:
        return self._runs.described()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_streams", "_locks")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _streams={}, _locks={})


class _Run:
    """One run, as far as it was asked for. It remembers positions `first` to `stop` - 1: the last `keep` at least."""

    def __init__(self, runs: Runs, epoch: int, keep: int, end: int | None) -> None:
        self._runs, self._epoch, self._keep, self._end = runs, epoch, keep, end
        self._run = runs.begin(epoch)
        self._blocks: deque[Indices] = deque()
        self.first = self.stop = 0
        self._take(HEAD if end is None else min(HEAD, end))
        self.checksum = checksum(self._blocks[0])

    def at(self, part: Part) -> Indices:
        """The indices at positions that are not below `first`."""
        while self.stop <= part.most:
            self._take(min(BLOCK, part.most + 1 - self.stop))
            self._forget(min(part.least, self.stop - self._keep))
        start, begin, found = self.first, 0, list[Indices]()
        for block in self._blocks:
            if start <= part.most and start + len(block) > part.least:
                begin = begin if found else start
                found.append(block)
            start += len(block)
        indices: Indices = np.concatenate(found)[part.positions - begin]
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
                "give it a __len__ that says how many there are"
            )

    def _forget(self, before: int) -> None:
        while self._blocks and self.first + len(self._blocks[0]) <= before:
            self.first += len(self._blocks.popleft())
