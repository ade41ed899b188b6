"""What a training process calls: launches, synchronisation, and events of the simulated device, as in torch.cuda."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.verdicts.shared import CLOSING, COMPLETED, LAUNCHED, READY, SLOTS, WAITERS, Shared


class Device:
    """The simulated device, started in `folder`.

    `depth` launches may be queued; the next one blocks, as a driver's does. `spin`: this process waits for the device
    by asking again and again, as CUDA does by default; otherwise it sleeps on a futex.
    """

    def __init__(self, folder: Path, *, depth: int = 64, spin: bool = False, period_us: int = 20_000) -> None:
        self.shared = Shared(folder / "queue.bin", make=True)
        self.depth, self.spin = min(depth, SLOTS // 2), spin
        command = [sys.executable, "-m", "benchmarks.verdicts.device", str(folder), "--period", str(period_us)]
        subprocess.run(command, check=True)
        while not self.shared.words[READY]:
            time.sleep(0.01)

    def launch(self, seconds: float) -> int:
        """Queue a kernel that runs for `seconds`; its number."""
        shared, words = self.shared, self.shared.words
        number = words[LAUNCHED]
        if number - words[COMPLETED] >= self.depth:
            self._wait(number - self.depth + 1)
        slot = shared.slot(number)
        words[slot], words[slot + 1], words[slot + 2] = time.monotonic_ns(), int(1e9 * seconds), 0
        words[LAUNCHED] = number + 1
        if words[COMPLETED] == number:  # it may be asleep
            shared.wake(LAUNCHED)
        return int(number)

    def synchronize(self) -> None:
        """Wait until all that was launched has run."""
        self._wait(self.shared.words[LAUNCHED])

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

    def _wait(self, until: int) -> None:
        words = self.shared.words
        if self.spin:
            while words[COMPLETED] < until:
                time.sleep(0)  # gives up the GIL, not the processor
            return
        words[WAITERS] = 1
        while (completed := words[COMPLETED]) < until:
            self.shared.wait(COMPLETED, completed, 1.0)
        words[WAITERS] = 0


class Event:
    """A CUDA event: an empty launch, which the device stamps when it gets there."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._number: int | None = None

    def record(self, _stream: object = None) -> None:
        self._number = self._device.launch(0.0)

    def query(self) -> bool:
        return self._number is not None and self._device.completed(self._number)

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this event to `other`; both have been passed."""
        assert self._number is not None
        assert other._number is not None
        return (self._device.ended(other._number) - self._device.ended(self._number)) / 1e6


class Cuda:
    """As much of torch.cuda as `iofast.stall` uses."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def Event(self, enable_timing: bool = False) -> Event:  # noqa: N802, ARG002 (as torch has it)
        return Event(self._device)

    def current_stream(self, _device: Any = None) -> None:
        return None

    def is_current_stream_capturing(self) -> bool:
        return False


class Loss:
    """What a step returns: its value is on the device."""

    def __init__(self, network: Network, seconds: float, kernels: int) -> None:
        self._network, self._seconds, self._kernels = network, seconds, kernels

    def backward(self) -> None:
        for _ in range(self._kernels):
            self._network.launch(self._seconds / self._kernels)

    def item(self) -> float:
        self._network.device.synchronize()
        return 0.0


class Network:
    """A network whose pass over a batch takes the device `seconds`: a third forward, two thirds backward.

    Each of its `kernels` costs the processor `ops` small operations.
    """

    def __init__(self, device: Device, seconds: float, kernels: int = 9, ops: int = 0) -> None:
        self.device, self.seconds, self.kernels, self.ops = device, seconds, kernels, ops
        self.small = torch.ones(64)

    def __call__(self, images: object) -> Loss:
        return self.forward(images)

    def forward(self, _images: object) -> Loss:
        count = max(1, self.kernels // 3)
        for _ in range(count):
            self.launch(self.seconds / 3 / count)
        return Loss(self, self.seconds * 2 / 3, max(1, self.kernels - count))

    def launch(self, seconds: float) -> None:
        """One kernel, and what the processor does for it."""
        for _ in range(self.ops):
            self.small.add(1.0)
        self.device.launch(seconds)
