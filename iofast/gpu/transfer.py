"""Batches on their way to a device.

`issue` makes one on a side stream, in a thread that works ahead; `hand_over` makes the consumer's stream wait for it.
The host waits for neither. Who asks for a batch gets tensors that its stream may use at once, and whose memory is not
used again before that stream is done with them.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import torch

from iofast.errors import StateError
from iofast.gpu.streams import CudaStreams, Event, Streams
from iofast.meter.counters import StageCounter

T = TypeVar("T")

AHEAD: Final = 2  # batches on the device that the consumer has not got: one is there while the next is being made
_POLL_S: Final = 50e-6, 2e-3  # between two looks at an event: at first, and at most
MAX_PENDING: Final = 64  # copies whose time has not been read; those beyond go untimed


class Bus(Protocol):
    """What the work of a batch uses to bring its tensors to the device."""

    @property
    def device(self) -> torch.device:
        """Where they go."""

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies on the device, for the current stream. All of a batch in one call: bytes and time are counted."""


class Issued(NamedTuple, Generic[T]):
    """What the device has been told to make; `ready` is behind the last of it."""

    value: T
    ready: Event


class Transfer:
    """The way to a device that has streams; for any number of passes, consumers and threads at the same time."""

    def __init__(self, device: torch.device, streams: Streams, counter: StageCounter) -> None:
        self.device = device
        self._streams, self._counter = streams, counter
        self._pending: deque[tuple[Event, Event]] = deque()  # copies, not yet timed
        self._reading = threading.Lock()  # never waited for: who finds it taken leaves the reading to its holder

    def begin(self) -> None:
        """In the consumer's thread, when a pass begins."""
        self._streams.begin()

    def issue(self, work: Callable[[Bus], T]) -> Issued[T]:
        """Have `work` make a batch: whatever it puts on the current stream goes to the side stream."""
        side = self._streams.side()
        with self._streams.on(side):
            value = work(self)
            ready = self._streams.record(side)
            self.collect()
        return Issued(value, ready)

    def hand_over(self, issued: Issued[T]) -> T:
        """The batch, for the calling thread's current stream."""
        stream = self._streams.current()
        self._streams.wait(stream, issued.ready)
        for tensor in tensors_of(issued.value):
            # made on the side stream: without a word its memory would go to the next batch there as soon as the
            # consumer forgets it, while the consumer's stream may not have begun to read it
            self._streams.keep(tensor, stream)
        return issued.value

    def mark(self) -> Event:
        """In the consumer's thread: behind all that its stream has been told to do by now."""
        return self._streams.record(self._streams.current())

    def wait_for(self, mark: Event, given_up: Callable[[], object]) -> None:
        """Have the calling thread wait until the device has passed `mark`, or the wait is given up."""
        pause, most = _POLL_S
        while not self._streams.passed(mark) and not given_up():
            time.sleep(pause)
            pause = min(2 * pause, most)  # late by no more than it has waited already

    def free_bytes(self) -> int | None:
        """Memory that can still be allocated on the device; None where nobody knows."""
        return self._streams.free_bytes()

    def check(self) -> None:
        """Raise `StateError` where a batch cannot be handed over now."""
        if self._streams.capturing():
            raise StateError(
                "a batch was asked for while a CUDA graph is captured, which would hold on to its memory: ask before, "
                "and copy the batch into the graph's own input"
            )

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Bus`."""
        streams, stream = self._streams, self._streams.current()
        start = streams.record(stream)
        made = [streams.copy(tensor) for tensor in tensors]
        if len(self._pending) < MAX_PENDING:
            self._pending.append((start, streams.record(stream)))
        self._counter.add(1, nbytes=sum(tensor.nbytes for tensor in tensors))
        return made

    def collect(self) -> None:
        """Read the times of the copies that the device has done."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            while self._pending and (taken := self._streams.elapsed_ns(*self._pending[0])) is not None:
                self._pending.popleft()
                self._counter.add(0, work_ns=taken)
        finally:
            self._reading.release()


class Direct:
    """The way to a device without streams of ours: copied when the consumer asks, in its thread."""

    def __init__(self, device: torch.device, counter: StageCounter) -> None:
        self.device = device
        self._counter = counter

    def begin(self) -> None:
        """Nothing to begin with."""

    def issue(self, work: Callable[[Bus], T]) -> Issued[T]:
        """Make a batch now."""
        return Issued(work(self), None)

    def hand_over(self, issued: Issued[T]) -> T:
        """The batch."""
        return issued.value

    def free_bytes(self) -> None:
        """Nobody knows."""

    def check(self) -> None:
        """There is always a way."""

    def collect(self) -> None:
        """Nothing is read later."""

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Bus`."""
        start = time.monotonic_ns()
        made = [tensor.to(self.device) for tensor in tensors]
        self._counter.add(1, nbytes=sum(tensor.nbytes for tensor in tensors), work_ns=time.monotonic_ns() - start)
        return made


def way_to(device: torch.device, counter: StageCounter) -> Transfer | Direct | None:
    """How batches get to `device`; None for the CPU, where they are made. Bytes and times go to `counter`."""
    if device.type == "cpu":
        return None
    if device.type == "cuda" and torch.version.hip is None:
        return Transfer(device, CudaStreams(device), counter)
    if device.type != "meta":  # which has no memory
        name = "ROCm" if device.type == "cuda" else device.type
        warnings.warn(
            f"device {device} ({name}): batches are copied when they are asked for, not ahead on a stream as with CUDA",
            RuntimeWarning,
            stacklevel=4,
        )
    return Direct(device, counter)


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    """Every tensor in a batch, however it is nested."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)
