"""A device that does nothing at once: a model of torch.cuda for the tests of whatever runs on several streams.

Work is put on streams and done later, in any order that streams and events allow, a little at every call. Memory comes
from a caching allocator with torch's rules: a block belongs to the stream it was allocated on, is given away again as
soon as its tensor dies, the last one freed first, and only `keep` has it wait for another stream. Page-locked memory
of the host waits for the copies that were made from it. So a batch that is read before it is there, or whose memory is
used again too early, holds other bytes than it should.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

POISON = 0xDD
Block = NDArray[np.uint8]


class Queue:
    """A stream: work in its order, and a clock of what it has done."""

    def __init__(self, name: str) -> None:
        self.name, self.work = name, deque[Callable[[], bool]]()


class Mark:
    """An event: whether the device has passed it, and when."""

    def __init__(self) -> None:
        self.passed, self.at = False, 0


class Memory:
    """Blocks by stream. What is free is given away again, the last one first; contents stay."""

    def __init__(self) -> None:
        self.free: dict[str, list[Block]] = {}
        self.kept: dict[int, list[tuple[Queue, Mark | None]]] = {}  # by block: streams that work with it
        self.waiting: list[tuple[str, Block, list[Mark]]] = []  # freed, but for these marks
        self.held: dict[int, tuple[str, Block]] = {}  # by address of the data

    def take(self, pool: str, size: int, device: Device) -> torch.Tensor:
        waiting, self.waiting = self.waiting, []
        for entry in waiting:
            if all(mark.passed for mark in entry[2]):
                self.free.setdefault(entry[0], []).append(entry[1])
            else:
                self.waiting.append(entry)
        blocks = self.free.setdefault(pool, [])
        found = [number for number, block in enumerate(blocks) if block.size == size]
        block = blocks.pop(found[-1]) if found else np.full(size, POISON, np.uint8)
        view = block[:]
        self.held[block.ctypes.data] = pool, block
        weakref.finalize(view, self.give_back, block.ctypes.data, device)
        return torch.from_numpy(view)

    def give_back(self, address: int, device: Device) -> None:
        pool, block = self.held.pop(address)
        marks = [mark or device.mark_on(queue) for queue, mark in self.kept.pop(address, [])]
        if marks:
            self.waiting.append((pool, block, marks))
        else:
            self.free[pool].append(block)


class Device:
    """Implements `iofast.gpu.Streams`. `faults` are names of calls that do nothing: "wait", "keep", "pin".

    Without `chance` all that may be done is done at once, with it a random part at each call.
    """

    def __init__(self, chance: random.Random | None = None, faults: frozenset[str] = frozenset()) -> None:
        self.chance, self.faults, self.now = chance, faults, 0
        self.queues = {name: Queue(name) for name in ("default", "side", "other")}
        speeds = (1.0,) if chance is None else (0.05, 0.5, 1.0)  # one stream may lie far behind another
        self.speeds = {name: (chance or random).choice(speeds) for name in self.queues}
        self.stack = [self.queues["default"]]
        self.device_memory, self.host_memory = Memory(), Memory()
        self.began = self.is_capturing = False

    # --- Streams

    def begin(self) -> None:
        self.began = True

    def side(self) -> Queue:
        assert self.began, "no consumer has said which device is meant"
        return self.queues["side"]

    def current(self) -> Queue:
        return self.stack[-1]

    @contextlib.contextmanager
    def on(self, stream: Queue) -> Iterator[None]:
        self.stack.append(stream)
        try:
            yield
        finally:
            self.stack.pop()

    def record(self, stream: Queue) -> Mark:
        self.go_on()
        return self.mark_on(stream)

    def wait(self, stream: Queue, event: Mark) -> None:
        if "wait" not in self.faults:
            stream.work.append(lambda: event.passed)
        self.go_on()

    def keep(self, tensor: torch.Tensor, stream: Queue) -> None:
        if "keep" not in self.faults:
            self.device_memory.kept.setdefault(tensor.untyped_storage().data_ptr(), []).append((stream, None))

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        made = self.empty(tensor)
        self.launch(lambda to, source: np.copyto(to, source), made, tensor)
        if "pin" not in self.faults:
            address = tensor.untyped_storage().data_ptr()
            mark = self.mark_on(self.current())
            self.host_memory.kept.setdefault(address, []).append((self.current(), mark))
        return made

    def elapsed_ns(self, start: Mark, end: Mark) -> int | None:
        self.go_on()
        return end.at - start.at if end.passed else None

    def capturing(self) -> bool:
        return self.is_capturing

    # --- what a kernel, a consumer and an allocator do

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Device memory for the current stream."""
        return self.device_memory.take(self.current().name, like.numel(), self).view(like.shape)

    def host(self, values: NDArray[np.uint8]) -> torch.Tensor:
        """Page-locked memory with `values` in it."""
        made = self.host_memory.take("host", values.size, self).view(values.shape)
        made.numpy()[...] = values
        return made

    def launch(self, kernel: Callable[..., Any], *tensors: torch.Tensor) -> None:
        """Have `kernel` called with the tensors' memory, on the current stream. It keeps none of them alive."""
        memory = [_raw(each).reshape(each.shape) for each in tensors]

        def done() -> bool:
            kernel(*memory)
            return True

        self.current().work.append(done)
        self.go_on()

    def mark_on(self, stream: Queue) -> Mark:
        mark = Mark()

        def passed() -> bool:
            mark.passed, mark.at = True, self.now
            return True

        stream.work.append(passed)
        return mark

    def go_on(self, *, to_the_end: bool = False) -> None:
        """Do some of what may be done, in an order that only chance knows."""
        chance = None if to_the_end else self.chance
        steps = 1 << 30 if chance is None else chance.choice((0, 1, 2, 8))
        while steps > 0:
            able = [queue for queue in self.queues.values() if queue.work]
            if chance is not None:
                able = [queue for queue in able if chance.random() < self.speeds[queue.name]]
                chance.shuffle(able)
            if not any(self._step(queue) for queue in able):
                assert chance is not None or not able, "streams wait for each other"
                return
            steps -= 1

    def _step(self, queue: Queue) -> bool:
        self.now += 1000
        if not queue.work[0]():
            return False
        queue.work.popleft()
        return True


def _raw(tensor: torch.Tensor) -> Block:
    """The memory of a contiguous tensor, without holding it: the model never gives any back to the system."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * tensor.numel()).from_address(tensor.data_ptr()))
