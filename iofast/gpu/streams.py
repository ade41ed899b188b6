"""What the transfer needs of a device: streams, events, and memory that knows who still works with it.

A stream is a queue of work that the device does in its order; the host only puts things there. An event is a mark in
that queue. Everything that can go wrong between two streams goes through these few calls, so that the tests can put a
model of a device in the place of torch.cuda, which notices what a GPU would do wrong in one run of a thousand.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

Stream = Any  # torch.cuda.Stream, or the model's
Event = Any

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_thread = threading.local()


class Streams(Protocol):
    """One device. `side` is a stream of the transfer's own, `current` that of the calling thread."""

    def begin(self) -> None:
        """Once in the thread of each consumer, before anything else: which device is meant, and the side stream."""

    def side(self) -> Stream:
        """The stream on which batches are made."""

    def current(self) -> Stream:
        """The calling thread's stream on this device."""

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Within it the calling thread works on this device and `stream`."""

    def record(self, stream: Stream) -> Event:
        """A mark behind everything that was put on `stream` until now."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Whatever is put on `stream` from now on comes after `event`. The host does not wait."""

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """When `tensor` dies, its memory is not given away before the work that `stream` has by then is done."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, made on the current stream; the host's memory lives until it is done."""

    def elapsed_ns(self, start: Event, end: Event) -> int | None:
        """Nanoseconds between two events of one stream; None while the device has not passed them."""

    def passed(self, event: Event) -> bool:
        """Whether the device has passed an event by now."""

    def free_bytes(self) -> int | None:
        """Memory that can still be allocated there; None where nobody knows."""

    def capturing(self) -> bool:
        """Whether the calling thread's stream is captured into a graph at the moment."""


class CudaStreams:
    """A CUDA device. One side stream for the life of a loader: memory is cached by stream, and that of another stream
    for each epoch would be allocated anew."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side: torch.cuda.Stream | None = None
        self._making = threading.Lock()  # of two consumers that begin at once, one makes it

    def begin(self) -> None:
        self.side()

    def side(self) -> torch.cuda.Stream:
        with self._making:
            if self._side is None:
                # "cuda" is the current device of the consumer's thread: in a thread of ours that would be the first one
                index = torch.cuda.current_device() if self._device.index is None else self._device.index
                self._device = torch.device("cuda", index)
                self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            return self._side

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    @contextlib.contextmanager
    def on(self, stream: torch.cuda.Stream) -> Iterator[None]:
        # the device by itself: to leave a stream of another device, torch goes back to that of the thread, and with
        # CUDA 12 a process of the fourth GPU would have a context, half a gigabyte, on the first
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            yield

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        stream.wait_event(event)

    def keep(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        if tensor.is_cuda:
            tensor.record_stream(stream)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        # The allocator of page-locked memory notes copies that do not block, and waits for them. What is pageable
        # would be copied twice by the driver, and the host would wait for all of the stream.
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:  # a user's function made it
            return tensor.to(self._device)
        if not tensor.is_pinned():
            tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)  # dense, where it was an expanded one
        return tensor.to(self._device, non_blocking=True)

    def elapsed_ns(self, start: torch.cuda.Event, end: torch.cuda.Event) -> int | None:
        return max(0, round(1e6 * start.elapsed_time(end))) if end.query() else None  # type: ignore[no-untyped-call]

    def passed(self, event: torch.cuda.Event) -> bool:
        return event.query()  # type: ignore[no-any-return, no-untyped-call, unused-ignore]

    def free_bytes(self) -> int:
        with torch.cuda.device(self._device):
            cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            return int(torch.cuda.mem_get_info()[0]) + cached

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()


def aside() -> None:
    """For a thread of ours, before it calls CUDA: a graph that the consumer captures meanwhile is none of its business.

    By default a capture fails as soon as any thread of the process allocates memory or asks for an event.
    """
    if getattr(_thread, "aside", False):
        return
    try:
        mode = ctypes.c_int(_RELAXED)
        status = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    except (OSError, AttributeError):  # no driver, or one from before there were graphs
        status = 0
    _thread.aside = status == 0  # else the driver has not been initialised yet
