"""Where a loader decodes its JPEGs: the choice, and the device's decoder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal

import torch

from iofast.errors import OptionError
from iofast.gpu.decode.decoder import DeviceDecoder
from iofast.gpu.decode.library import lacking, open_decoder
from iofast.machine import cores_of_rank

_CORES_PER_THREAD = 4  # the library gets one thread per so many cores; the others launch training's kernels


class Decoding:
    """The choice for one loader, and its decoder on the device. `obstacles` are reasons why it cannot decode there.

    Raises `OptionError` at construction if "gpu" is not available.
    """

    def __init__(self, wanted: Literal["cpu", "gpu"], device: torch.device, obstacles: Iterator[str]) -> None:
        self.on_device = wanted == "gpu"
        self._device, self._opening = device, threading.Lock()
        self._decoder: DeviceDecoder | None = None
        obstacle = (lacking(device) or next(obstacles, None)) if self.on_device else None
        if obstacle is not None:
            raise OptionError(f"decode='gpu' is not available: {obstacle}")

    @property
    def description(self) -> str:
        """Where decoding is done."""
        return "on the device" if self.on_device else "on the CPU"

    def decoder(self) -> DeviceDecoder:
        """Return the device's decoder, opened at the first call. Its device must be the current one."""
        with self._opening:
            if self._decoder is None:
                self._decoder = open_decoder(self._device, max(1, cores_of_rank() // _CORES_PER_THREAD))
            return self._decoder
