"""A device that does no work at once: a model of torch.cuda for tests of code on several streams.

Work is queued on streams and done later, in any order that streams and events allow, a little at every call. Memory
comes from a caching allocator with torch's rules: a block belongs to the stream on which it was allocated, and is
reused as soon as its tensor dies, the last one freed first. Only `keep` makes it wait for another stream. Page-locked
memory of the host waits for copies from it. So a batch that is read too early, or whose memory is reused too early, has
wrong bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.gpu.on_host import launch_on_host
from iofast import FastLoader
from iofast.gpu import Bus, Issued, Transfer
from iofast.gpu.stages import Prepared
from iofast.loader.decoding import Tables

POISON = 0xDD
Block = NDArray[np.uint8]


class Queue:
    """A stream: queued work, done in order."""

    def __init__(self, name: str) -> None:
        self.name, self.work = name, deque[Callable[[], bool]]()


class Mark:
    """An event: whether the device has passed it, and at which time."""

    def __init__(self) -> None:
        self.passed, self.at = False, 0


class Memory:
    """Blocks by stream. Free blocks are reused, the last one first, with their old contents."""

    reused = True  # else there is no finalizer: a Ctrl-C is lost in one of Python's

    def __init__(self) -> None:
        self.free: dict[str, list[Block]] = {}
        self.kept: dict[int, list[tuple[Queue, Mark | None]]] = {}  # by block: streams that use it
        self.waiting: list[tuple[str, Block, list[Mark]]] = []  # freed once these marks are passed
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
        if self.reused:
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
    """Has the methods of `iofast.gpu.CudaStreams`.

    Without `chance` all possible work is done at once, with it a random part at each call.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self.chance, self.now = chance, 0
        self.queues = {name: Queue(name) for name in ("default", "side", "other")}
        speeds = (1.0,) if chance is None else (0.05, 0.5, 1.0)  # one stream may be far behind another
        self.speeds = {name: (chance or random).choice(speeds) for name in self.queues}
        self.of_thread = threading.local()  # the stack of current streams of each thread
        self.lock = threading.RLock()  # a tensor may die within any call
        self.device_memory, self.host_memory = Memory(), Memory()
        self.free_memory = 1 << 30
        self.frozen: set[str] = set()  # names of streams that are stopped
        self.began = self.is_capturing = False

    # --- CudaStreams

    def begin(self) -> None:
        self.began = True

    def side(self) -> Queue:
        assert self.began, "no consumer has said which device is meant"
        return self.queues["side"]

    def current(self) -> Queue:
        stack: list[Queue] = getattr(self.of_thread, "stack", [self.queues["default"]])
        return stack[-1]

    @contextlib.contextmanager
    def on(self, stream: Queue) -> Iterator[None]:
        before = getattr(self.of_thread, "stack", [self.queues["default"]])
        self.of_thread.stack = [*before, stream]
        try:
            yield
        finally:
            self.of_thread.stack = before

    def record(self, stream: Queue) -> Mark:
        self.go_on()
        return self.mark_on(stream)

    def wait(self, stream: Queue, event: Mark) -> None:
        stream.work.append(lambda: event.passed)
        self.go_on()

    def keep(self, tensor: torch.Tensor, stream: Queue) -> None:
        self.device_memory.kept.setdefault(tensor.untyped_storage().data_ptr(), []).append((stream, None))

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        made = self.empty(tensor)
        address = tensor.untyped_storage().data_ptr()
        locked = address in self.host_memory.held  # other memory is read at once, as by CUDA
        self.put(partial(np.copyto, _bytes(made), _bytes(tensor) if locked else _bytes(tensor).copy()))
        if locked:
            mark = self.mark_on(self.current())
            self.host_memory.kept.setdefault(address, []).append((self.current(), mark))
        return made

    def run(self, prepared: Prepared) -> None:
        self.put(partial(launch_on_host, prepared))

    def fetch(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        found, stream = np.zeros(tensor.shape, np.int32), self.current()
        memory = _bytes(tensor)
        self.put(lambda: np.copyto(found.reshape(-1).view(np.uint8), memory))

        def fetched() -> torch.Tensor:
            self.catch_up(stream.name)
            return torch.from_numpy(found)

        return fetched

    def elapsed_ns(self, start: Mark, end: Mark) -> int | None:
        self.go_on()
        return end.at - start.at if end.passed else None

    def passed(self, event: Mark) -> bool:
        self.go_on()
        return event.passed

    def free_bytes(self) -> int:
        return self.free_memory

    def capturing(self) -> bool:
        return self.is_capturing

    # --- the parts of a kernel, a consumer and an allocator

    def pool(self, tensor: torch.Tensor) -> str | None:
        """The stream to which the memory of a tensor belongs; None if it is not the device's."""
        return self.device_memory.held.get(tensor.untyped_storage().data_ptr(), (None,))[0]

    def catch_up(self, name: str) -> None:
        """Do all work of a stream, and the work of others that it waits for."""
        queue, others = self.queues[name], [each for each in self.queues.values() if each.name != name]
        with self.lock:
            while queue.work:
                if not self._step(queue):
                    assert sum(self._step(each) for each in others if each.work), "streams wait for each other"

    def blocks(self) -> int:
        """The number of blocks of device memory that were ever allocated."""
        memory = self.device_memory
        return len(memory.held) + len(memory.waiting) + sum(map(len, memory.free.values()))

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Device memory of the current stream, with the type, shape and strides of a dense tensor."""
        memory = self.device_memory.take(self.current().name, like.nbytes, self).view(like.dtype)
        return memory.as_strided(like.shape, like.stride())

    def host(self, values: NDArray[np.uint8]) -> torch.Tensor:
        """Page-locked memory with these values."""
        made = self.host_memory.take("host", values.size, self).view(values.shape)
        made.numpy()[...] = values
        return made

    def launch(self, kernel: Callable[..., Any], *tensors: torch.Tensor) -> None:
        """Queue a call of `kernel` with the memory of contiguous uint8 tensors on the current stream."""
        memory = [_bytes(each).reshape(each.shape) for each in tensors]
        self.put(lambda: kernel(*memory))

    def put(self, work: Callable[[], Any]) -> None:
        """Queue work on the current stream."""

        def done() -> bool:
            work()
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
        """Do some of the possible work, in random order."""
        with self.lock:
            self._go_on(to_the_end)

    def _go_on(self, to_the_end: bool) -> None:
        chance = None if to_the_end else self.chance
        steps = 1 << 30 if chance is None else chance.choice((0, 1, 2, 8))
        while steps > 0:
            able = [queue for queue in self.queues.values() if queue.work and queue.name not in self.frozen]
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


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)


def _copy(out: Block, source: torch.Tensor) -> None:
    np.copyto(out, _bytes(source))


def _bytes(tensor: torch.Tensor) -> Block:
    """The memory of a dense tensor, without keeping it alive: the model never frees memory."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr()))


def _storage(tensor: torch.Tensor) -> Block:
    """All memory of a tensor's storage, without keeping it alive."""
    storage = tensor.untyped_storage()
    return np.ctypeslib.as_array((ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr()))


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an operation writes to."""
    written = [argument for argument in func._schema.arguments if argument.alias_info and argument.alias_info.is_write]
    places = {argument.name: number for number, argument in enumerate(func._schema.arguments)}
    found = [
        kwargs.get(each.name, args[places[each.name]] if places[each.name] < len(args) else None) for each in written
    ]
    return [each for each in tree_leaves(found) if _is_tensor(each)]


class Deferred(TorchDispatchMode):
    """Inside it, torch's results are in the device's memory, and are written when the current stream reaches that work.

    Inputs are up to date, because a stream is in order with itself.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.returns and all(
            each.alias_info and not each.alias_info.is_write for each in func._schema.returns
        ):
            return func(*args, **(kwargs or {}))  # a view, which reads nothing
        given = [each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if _is_tensor(each)]
        self.device.catch_up(self.device.current().name)

        def there(made: Any) -> Any:
            if not _is_tensor(made) or made.untyped_storage().data_ptr() in given or not made.nbytes:
                return made
            moved = self.device.empty(made)
            self.device.put(partial(_copy, _bytes(moved), made))  # keeps `made` alive
            return moved

        written = [_storage(each) for each in _written(func, args, kwargs or {}) if self.device.pool(each) is not None]
        with self.device.lock:
            before = [block.copy() for block in written]
            made = func(*args, **(kwargs or {}))
            after = [block.copy() for block in written]
            for block, old in zip(written, before, strict=True):  # in-place changes are late too
                block[:] = old
        for block, old, new in zip(written, before, after, strict=True):
            self.device.put(partial(np.copyto, block, new, where=new != old))
        return tree_map(there, made)


class HostMemory:
    """Replaces `BatchMemory`: page-locked, and not reused while the device copies from it."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def take(self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        with self.device.lock:
            made = self.device.host_memory.take("host", math.prod(shape) * dtype.itemsize, self.device)
        return made.view(dtype).view(shape)


class LateTransfer(Transfer):
    """A `Transfer` that also defers torch's own work."""

    def issue(self, work: Callable[[Bus], Any]) -> Issued[Any]:
        def deferred(bus: Bus) -> Any:
            with Deferred(cast(Device, self._streams)):
                return work(bus)

        return super().issue(deferred)


def lend_late(loader: FastLoader, device: Device) -> None:
    """Give a loader a device that does no work at once. Tests must read its batches by work on a stream."""
    loader._spec.device, loader._spec.finishes_there = torch.device("cuda"), True
    loader._resources.transfer = LateTransfer(torch.device("cpu"), device, loader._stages.transfer)
    loader._resources.memory = HostMemory(device)  # type: ignore[assignment]


def lend(loader: FastLoader) -> Device:
    """Give a loader that was made for the CPU a device that is never late: torch's own work is done at once."""
    device = Device()
    loader._spec.device, loader._spec.finishes_there = torch.device("cuda"), True
    loader._resources.transfer = Transfer(torch.device("cpu"), device, loader._stages.transfer)
    return device


def decode_there(loader: FastLoader) -> None:
    """Let the device decode the JPEGs of a loader that was made for the CPU."""
    decoding = loader._resources.decoding
    decoding.tables = Tables()
