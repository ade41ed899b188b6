"""Batches on their way to a device.

`issue` makes a batch on a side stream, in a thread that works ahead. `hand_over` makes the consumer's stream wait for
it. The host waits for neither. The consumer's stream may use the tensors at once, and their memory is not reused before
that stream is done with them.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

import torch

from iofast.errors import StateError
from iofast.gpu.streams import CudaStreams, Event
from iofast.meter.counters import StageCounter

if TYPE_CHECKING:
    from iofast.gpu.stages import Prepared

T = TypeVar("T")

_POLL_S: Final = 50e-6, 2e-3  # first and longest pause between two queries of an event
MAX_PENDING: Final = 64  # copies whose times are not read yet; further ones are not timed


class Bus(Protocol):
    """How the work of a batch copies its tensors to the device."""

    @property
    def device(self) -> torch.device:
        """The target."""

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies on the device, for the current stream. One call per batch, which counts as one item."""

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a small table on the device, for the current stream. It is not counted."""

    def run(self, prepared: Prepared) -> None:
        """Run the stages of a batch on the current stream."""

    def fetch(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Copy a small table to the host on the current stream. The result waits for it."""


class Issued(NamedTuple, Generic[T]):
    """A batch that the device makes; the event `ready` lies behind the last of its work."""

    value: T
    ready: Event


class Transfer:
    """Copies to a device with streams, for any number of passes, consumers and threads at once."""

    def __init__(self, device: torch.device, streams: CudaStreams, counter: StageCounter) -> None:
        self.device = device
        self._streams, self._counter = streams, counter
        self.send, self.run, self.fetch = streams.copy, streams.run, streams.fetch  # see `Bus`
        self.free_bytes = streams.free_bytes
        self._pending: deque[tuple[Event, Event]] = deque()  # start and end of copies that are not timed yet
        self._reading = threading.Lock()  # tried, never waited for: one reader at a time is enough

    def begin(self) -> None:
        """Begin a pass; call in the consumer's thread."""
        self._streams.begin()

    def issue(self, work: Callable[[Bus], T]) -> Issued[T]:
        """Call `work` with the side stream as the current one."""
        side = self._streams.side()
        with self._streams.on(side):
            value = work(self)
            ready = self._streams.record(side)
            self.collect()
        return Issued(value, ready)

    def hand_over(self, issued: Issued[T]) -> T:
        """Return the batch, usable on the calling thread's current stream."""
        stream = self._streams.current()
        self._streams.wait(stream, issued.ready)
        for tensor in tensors_of(issued.value):
            # without this the allocator could give the memory to the side stream's next batch once the consumer drops
            # the tensor, before the consumer's stream has read it
            self._streams.keep(tensor, stream)
        return issued.value

    def mark(self) -> Event:
        """Return an event behind all work that the consumer's stream has by now; call in the consumer's thread."""
        return self._streams.record(self._streams.current())

    def wait_for(self, mark: Event, given_up: Callable[[], object]) -> None:
        """Block the calling thread until the device has passed `mark`, or `given_up()` is true."""
        pause, longest = _POLL_S
        while not self._streams.passed(mark) and not given_up():
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def check(self) -> None:
        """Raise `StateError` if a CUDA graph is being captured, which would keep the batch's memory."""
        if self._streams.capturing():
            raise StateError(
                "no batch can be handed over while a CUDA graph is captured, which would keep its memory: call next() "
                "before, and copy the batch into the graph's own input"
            )

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Bus`."""
        streams, stream = self._streams, self._streams.current()
        start = streams.record(stream)
        copies = [streams.copy(tensor) for tensor in tensors]
        if len(self._pending) < MAX_PENDING:
            self._pending.append((start, streams.record(stream)))
        self._counter.add(1, nbytes=sum(tensor.nbytes for tensor in tensors))
        return copies

    def collect(self) -> None:
        """Count the times of the copies that the device has finished."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            while self._pending and (elapsed := self._streams.elapsed_ns(*self._pending[0])) is not None:
                self._pending.popleft()
                self._counter.add(0, work_ns=elapsed)
        finally:
            self._reading.release()


class Direct:
    """Copies to any other device: made when the consumer asks for a batch, in its thread."""

    def __init__(self, device: torch.device, counter: StageCounter) -> None:
        self.device = device
        self._counter = counter

    def begin(self) -> None:
        """Do nothing."""

    def issue(self, work: Callable[[Bus], T]) -> Issued[T]:
        """Make a batch now."""
        return Issued(work(self), None)

    def hand_over(self, issued: Issued[T]) -> T:
        """Return the batch."""
        return issued.value

    def check(self) -> None:
        """Do nothing: there are no graphs."""

    def collect(self) -> None:
        """Do nothing: `copy` has counted its time."""

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Bus`."""
        return tensor.to(self.device)

    def run(self, _: Prepared) -> None:
        """See `Bus`. The CPU finishes images for such a device."""
        raise RuntimeError(f"device {self.device} runs no stages")

    def fetch(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """See `Bus`."""
        return lambda: tensor.cpu()

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Bus`."""
        start = time.monotonic_ns()
        copies = [tensor.to(self.device) for tensor in tensors]
        self._counter.add(1, nbytes=sum(tensor.nbytes for tensor in tensors), work_ns=time.monotonic_ns() - start)
        return copies


def transfer_to(device: torch.device, counter: StageCounter) -> Transfer | Direct:
    """Return how batches are copied to `device`, which is not the CPU. Bytes and times go to `counter`."""
    if device.type == "cuda" and torch.version.hip is None:
        return Transfer(device, CudaStreams(device), counter)
    if device.type != "meta":  # which has no memory
        name = "ROCm" if device.type == "cuda" else device.type
        warnings.warn(
            f"device {device} ({name}): batches are copied in next(), not ahead on a stream as with CUDA",
            RuntimeWarning,
            stacklevel=4,
        )
    return Direct(device, counter)


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    """Yield every tensor in nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):  # `Mapping` would take four times as long to ask for
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(each)
