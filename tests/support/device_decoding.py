"""A stand-in, on Pillow, for a library that decodes JPEGs on a device, and loaders that use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_model import lend
from PIL import Image

from iofast import FastDataset, FastLoader
from iofast.gpu.decode import DeviceDecoder, Jpeg, choice

Fault = Callable[[int, torch.Tensor], Any]  # (number of the image since the beginning, its pixels) to the result


class Double:
    """`Backend` on Pillow. `fault` may change a decoded image, or raise."""

    name = "the double"

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.seen: list[Jpeg] = []
        self.calls = 0

    def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
        self.calls += 1
        return [self._one(jpeg) for jpeg in jpegs]

    def _one(self, jpeg: Jpeg) -> Any:
        number = len(self.seen)
        self.seen.append(jpeg)
        image = Image.open(BytesIO(jpeg.data.numpy().tobytes()))
        assert image.getexif().get(0x0112, 1) == 1, "a decoder that turns it by itself would turn it twice"
        assert image.size == (jpeg.width, jpeg.height)
        made = torch.from_numpy(np.array(image.convert("RGB")))
        return made if self.fault is None else self.fault(number, made)


class Bench:
    """Makes loaders that decode on the double. `there` also has a model of streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend = Double()
        self.idle = 0
        monkeypatch.setattr(choice, "lacking", lambda device: None)
        monkeypatch.setattr(choice, "open_decoder", self._open)

    def _open(self, device: torch.device, threads: int) -> DeviceDecoder:
        return DeviceDecoder(self.backend, self._idle)

    def _idle(self) -> None:
        self.idle += 1

    def there(self, path: Path | FastDataset, batch_size: int = 8, **options: Any) -> FastLoader:
        options = {"decode": "gpu", "num_workers": 2, **options}
        loader = here(path, batch_size, **options)
        lend(loader)
        return loader


def here(path: Path | FastDataset, batch_size: int = 8, **options: Any) -> FastLoader:
    dataset = path if isinstance(path, FastDataset) else FastDataset(path)
    return FastLoader(dataset, batch_size, **{"num_workers": 2, **options})


def jpeg_of(data: bytes, region: tuple[int, int, int, int] | None = None) -> Jpeg:
    width, height = Image.open(BytesIO(data)).size
    return Jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), width, height, *(region or (0, 0, width, height)))
