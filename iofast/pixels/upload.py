"""Small tables on their way to the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """`array` on `device`, for its current stream.

    To a GPU from page-locked memory: a copy from any other has the host wait until the stream has done all that it was
    given before, and so each pass would be launched only when the last one is through.
    """
    table = torch.from_numpy(array)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table.to(device)
