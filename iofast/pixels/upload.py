"""Copies of small tables to the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy `array` to `device`, on its current stream.

    For a GPU it goes through page-locked memory. A copy from other memory would block the host until the stream is
    idle, so each pass would be launched only after the last one has ended.
    """
    table = torch.from_numpy(array)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table.to(device)
