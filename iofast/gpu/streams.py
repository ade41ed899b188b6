"""What the transfer needs of a device: streams, events, and memory that waits for the streams that use it.

A stream is a queue of work that the device does in order. An event is a mark in that queue. All synchronisation goes
through the few calls of `CudaStreams`, so that tests can replace it by a model that reveals missing ones.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from iofast.gpu.compiled import Kernels
    from iofast.gpu.stages import Prepared

Event = Any  # torch.cuda.Event, or the model's


class CudaStreams:
    """A CUDA device: a side stream for the transfer, and the current stream of each thread.

    The side stream lasts as long as the loader, because torch caches memory by stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side: torch.cuda.Stream | None = None
        self._kernels: Kernels | None = None
        self._lock = threading.Lock()  # two consumers may begin at once

    def begin(self) -> None:
        """Choose the device and make the side stream. Must be the first call of each consumer, in its thread."""
        self.side()

    def side(self) -> torch.cuda.Stream:
        """Return the stream on which batches are made."""
        with self._lock:
            if self._side is None:
                # "cuda" means the current device of the consumer's thread; in other threads that would be device 0
                index = torch.cuda.current_device() if self._device.index is None else self._device.index
                self._device = torch.device("cuda", index)
                self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            return self._side

    def current(self) -> torch.cuda.Stream:
        """Return the calling thread's stream on this device."""
        return torch.cuda.current_stream(self._device)

    @contextlib.contextmanager
    def on(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Make this device and `stream` current for the calling thread."""
        # Enter the device too: on leaving a stream of another device, torch returns to the thread's device, and with
        # CUDA 12 that would make a context of half a gigabyte on device 0
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            yield

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Return an event behind all work that `stream` has by now."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """Order all later work of `stream` behind `event`. The host does not wait."""
        stream.wait_event(event)

    def keep(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Keep the memory of `tensor` after its death until `stream` has done the work that it has by then."""
        if tensor.is_cuda:
            tensor.record_stream(stream)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy to the device on the current stream. The source's memory is not reused before the copy is done."""
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:  # from a user's function
            return tensor.to(self._device)
        if not tensor.is_pinned():
            # The driver would copy pageable memory twice, and the host would wait for the whole stream
            tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)  # dense, also for expanded tensors
        return tensor.to(self._device, non_blocking=True)

    def run(self, prepared: Prepared) -> None:
        """Run the stages of a batch on the current stream. What it works with belongs to that stream."""
        from iofast.gpu.stages import launch  # needs the native kernel

        launch(self._loaded(), prepared, self.current().cuda_stream)

    def fetch(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Copy to the host on the current stream. The result waits for the copy."""
        host = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # else a core would spin meanwhile
        event.record(self.current())

        def fetched() -> torch.Tensor:
            event.synchronize()
            return host

        return fetched

    def _loaded(self) -> Kernels:
        from iofast.gpu.compiled import Kernels, binary
        from iofast.gpu.stages import STAGES

        with self._lock:
            if self._kernels is None:
                major, minor = torch.cuda.get_device_capability(self._device)
                self._kernels = Kernels(binary(f"sm_{major}{minor}"), STAGES)
            return self._kernels

    def elapsed_ns(self, start: torch.cuda.Event, end: torch.cuda.Event) -> int | None:
        """Return nanoseconds between two events of one stream, None until the device has passed both."""
        return max(0, round(1e6 * start.elapsed_time(end))) if end.query() else None  # type: ignore[no-untyped-call]

    def passed(self, event: torch.cuda.Event) -> bool:
        """Return whether the device has passed `event`."""
        return event.query()  # type: ignore[no-any-return, no-untyped-call, unused-ignore]

    def free_bytes(self) -> int:
        """Return how many bytes can still be allocated on the device."""
        with torch.cuda.device(self._device):
            cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            return int(torch.cuda.mem_get_info()[0]) + cached

    def capturing(self) -> bool:
        """Return whether the calling thread's stream is being captured into a graph."""
        return torch.cuda.is_current_stream_capturing()
