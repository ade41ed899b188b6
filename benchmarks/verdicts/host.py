"""The training process's side of the simulated device: launches, synchronisation, events and networks."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.verdicts.device import CLOSING, COMPLETED, LAUNCHED, READY, Shared

_SOURCE: Final = Path(__file__).with_name("driver.c")
DEPTH: Final = 64


class Device:
    """The simulated device, started in `folder`.

    `DEPTH` launches may be queued; the next one blocks, as a driver's does. `spin`: this process waits for the device
    by polling, as CUDA does by default; otherwise it sleeps on a futex. Raises CalledProcessError or FileNotFoundError
    without a C compiler for the driver.

    launch       queues a kernel that runs for so many nanoseconds, and returns its number
    synchronize  waits until all that was launched has run
    """

    launch: Callable[[int], int]
    synchronize: Callable[[], None]

    def __init__(self, folder: Path, *, spin: bool, period_us: int) -> None:
        library = folder / "driver.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)], check=True)
        self.shared = Shared(folder / "queue.bin", make=True)
        driver = ctypes.CDLL(str(library))
        driver.launch.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)
        driver.launch.restype = ctypes.c_uint64
        driver.synchronize.argtypes = (ctypes.c_void_p, ctypes.c_int)
        driver.synchronize.restype = None
        # No Python function between: in a stack, the waiting line is the program's, as with a real driver.
        self.launch = functools.partial(driver.launch, self.shared.address, DEPTH, spin)
        self.synchronize = functools.partial(driver.synchronize, self.shared.address, spin)
        command = [sys.executable, "-m", "benchmarks.verdicts.device", str(folder), str(period_us)]
        subprocess.run(command, check=True)
        while not self.shared.words[READY]:
            time.sleep(0.01)

    def completed(self, number: int) -> bool:
        """Whether launch `number` has run."""
        return bool(self.shared.words[COMPLETED] > number)

    def ended(self, number: int) -> int:
        """When launch `number` ended, in monotonic nanoseconds."""
        return int(self.shared.words[self.shared.slot(number) + 2])

    def close(self) -> None:
        """The device ends when its queue is empty."""
        self.shared.words[CLOSING] = 1
        self.shared.wake(LAUNCHED)


class Event:
    """A CUDA event: an empty launch with the device's time stamp."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._number: int | None = None

    def record(self, _stream: object = None) -> None:
        self._number = self._device.launch(0)

    def query(self) -> bool:
        return self._number is not None and self._device.completed(self._number)

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this event to `other`; both have been passed."""
        assert self._number is not None
        assert other._number is not None
        return (self._device.ended(other._number) - self._device.ended(self._number)) / 1e6


class Cuda:
    """The part of torch.cuda that `iofast.meter` uses."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def Event(self, enable_timing: bool = False) -> Event:  # noqa: N802, ARG002 (as torch has it)
        return Event(self._device)

    def current_stream(self, _device: Any = None) -> None:
        return None

    def is_current_stream_capturing(self) -> bool:
        return False


class Network(torch.nn.Module):
    """A network whose pass over a batch takes the device `seconds`: a third forward, two thirds backward.

    Each of its `kernels` costs the processor `ops` small operations. The loss that it returns waits in .item().
    """

    def __init__(self, device: Device, seconds: float, kernels: int = 9, ops: int = 0) -> None:
        super().__init__()
        self.device, self.ops = device, ops
        self.kernels, self.kernel_ns = kernels, int(1e9 * seconds / kernels)
        self.weight = torch.ones(64, requires_grad=True)

    def forward(self, _images: object) -> torch.Tensor:
        loss: torch.Tensor = _Pass.apply(self.weight, self)
        loss.item = self.device.synchronize  # type: ignore[assignment, method-assign]
        return loss

    def run(self, kernels: int) -> None:
        """Launch so many kernels."""
        small = self.weight.detach()
        for _ in range(kernels):
            for _ in range(self.ops):
                small.add(1.0)
            self.device.launch(self.kernel_ns)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, network: Network) -> torch.Tensor:
        ctx.network = network
        network.run(max(1, network.kernels // 3))
        return weight.sum()

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        network: Network = ctx.network
        network.run(network.kernels - max(1, network.kernels // 3))
        return torch.zeros_like(network.weight), None
