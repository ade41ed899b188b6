"""Images made on a device that is as late as it may be: the CPU kernel's values, also if memory is used again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from device_model import Device, LateTransfer
from numpy.typing import NDArray

from iofast import kernel
from iofast.gpu import Bus
from iofast.gpu.images import DeviceImages, make
from iofast.kernel.contract import DecodeOptions, Finish
from iofast.meter.counters import StageCounter
from iofast.work import Step, no_work

CPU = torch.device("cpu")
SCALE = np.array([[0.017, 0.018, 0.019], [-2.1, -2.0, -1.8]], np.float32)


def blurred(count: int) -> Finish:
    """Steps in one memory and in the other, then floats."""
    work = no_work(count)
    numbers = np.zeros((count, 3, 12), np.float32)
    numbers[:, 0, :4], numbers[:, 1, 0], numbers[:, 2, 0] = (1.5, 4, 1, 3), 1.3, 1
    steps = np.tile(np.array([Step.BLUR, Step.CONTRAST, Step.FLIP], np.int8), (count, 1))
    steps[::2, 0] = Step.NOTHING
    work = type(work)(**{name: getattr(work, name) for name in work.__slots__} | {"steps": steps, "numbers": numbers})
    return Finish(work, SCALE, np.zeros((0, 3), np.float32), "float32")


@pytest.mark.parametrize("seed", range(6))
def test_late_images_are_the_kernels(seed: int) -> None:
    rng, device = np.random.default_rng(seed), Device(random.Random(seed))
    transfer = LateTransfer(CPU, device, StageCounter())  # type: ignore[arg-type]
    transfer.begin()
    expected, wrong = list[NDArray[Any]](), list[int]()

    def look(number: int, found: NDArray[np.uint8]) -> None:
        if found.tobytes() != expected[number].tobytes():
            wrong.append(number)

    for number in range(6):
        images = rng.integers(0, 256, (4, 9, 12, 3), np.uint8)
        expected.append(np.zeros(images.shape, np.float32))
        kernel.finish_batch(kernel.Context(DecodeOptions()), images, blurred(4), expected[-1])
        host = device.host(images.reshape(-1)).view(images.shape)

        def work(bus: Bus, host: torch.Tensor = host) -> torch.Tensor:
            (there,) = bus.copy([host])
            pixels = DeviceImages.of(there.permute(0, 3, 1, 2))
            return make(bus, pixels, blurred(4), torch.float32, torch.channels_last).images.permute(0, 2, 3, 1)

        issued = transfer.issue(work)
        made = transfer.hand_over(issued)
        device.launch(lambda found, number=number: look(number, found), made.view(torch.uint8))
        del host, issued, made
    device.go_on(to_the_end=True)
    assert not wrong
