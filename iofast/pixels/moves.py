"""Steps that move pixels, in torch: warps, flips and padding; see steps.py."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.pixels.upload import upload
from iofast.work import Edge, beyond

Numbers = NDArray[np.float32]  # (n, NUMBERS): the parameters of each image

_SHARES = 2048  # subdivisions of the way from one pixel to the next
_FARTHEST = 1 << 20  # pixels beyond an edge


def whole(values: NDArray[np.float32], least: int, most: int) -> NDArray[np.int32]:
    """Truncate values to integers within limits; NaN becomes `least`."""
    return np.where(values > least, np.minimum(np.nan_to_num(values, posinf=most), most), least).astype(np.int32)


def spread(values: NDArray[np.int32], images: torch.Tensor) -> torch.Tensor:
    """Return one number per image, in a shape that broadcasts over its pixels."""
    return upload(values, images.device).view(-1, 1, 1, 1)


def _warp(images: torch.Tensor, numbers: Numbers, back: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return images with a frame of the outside colour, and the source columns and rows in it, float32 (n, H, W)."""
    n, _, height, width = images.shape
    frames = upload(whole(numbers[:, 8:11], 0, 255).astype(np.uint8), images.device).view(n, 3, 1, 1)
    frames = frames.expand(n, 3, height + 3, width + 3).clone()
    frames[:, :, 1:-2, 1:-2] = images
    a, b, c, d, e, f, g, h = upload(numbers[:, :8].T.copy(), images.device).unsqueeze(-1).unsqueeze(-1)
    at = torch.arange(width, dtype=torch.float32, device=images.device) + 0.5
    line = torch.arange(height, dtype=torch.float32, device=images.device).view(-1, 1) + 0.5
    below = g * at + (h * line + 1)
    x, y = (a * at + (b * line + c)) / below - back, (d * at + (e * line + f)) / below - back
    x, y = torch.where(x > -1, x, -1), torch.where(y > -1, y, -1)  # NaN too
    return frames, x.clamp_(max=width) + 1, y.clamp_(max=height) + 1


def _taken(frames: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    places = (row * frames.shape[3] + column).flatten(1).unsqueeze(1).expand(-1, 3, -1)
    return frames.flatten(2).gather(2, places).view(len(frames), 3, *row.shape[1:])


def warp_nearest(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """`Step.WARP_NEAREST`: copy the source pixel of each pixel."""
    frames, x, y = _warp(images, numbers, 0)
    return _taken(frames, y.long(), x.long())


def warp_bilinear(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """`Step.WARP_BILINEAR`: interpolate between the four pixels around the source of each pixel."""
    frames, x, y = _warp(images, numbers, 0.5)
    column, row = x.long(), y.long()
    across, down = (((v - cell) * _SHARES + 0.5).to(torch.int32).unsqueeze(1) for v, cell in ((x, column), (y, row)))
    left, right, below_left, below_right = (
        _taken(frames, row + below, column + beside).to(torch.int32) for below in (0, 1) for beside in (0, 1)
    )
    upper, lower = (left << 11) + (right - left) * across, (below_left << 11) + (below_right - below_left) * across
    return ((upper << 9) + (lower - upper >> 2) * down + (1 << 19) >> 20).to(torch.uint8)


def flip(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """`Step.FLIP`: mirror left to right, top to bottom."""
    across, down = (spread((numbers[:, place] != 0).astype(np.int32), images) != 0 for place in (0, 1))
    images = torch.where(across, images.flip(3), images)
    return torch.where(down, images.flip(2), images)


def pad(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """`Step.PAD`: look up the rows and columns of the padded image."""
    n, _, height, width = images.shape
    edges = whole(numbers[:, 4], 0, int(Edge.SYMMETRIC))
    from_left, from_top = (whole(numbers[:, place], -_FARTHEST, _FARTHEST) for place in (0, 1))
    x = upload(_beyond(from_left, whole(numbers[:, 2], 1, width), edges, width), images.device)
    y = upload(_beyond(from_top, whole(numbers[:, 3], 1, height), edges, height), images.device)
    padded = images.gather(2, y.clamp(min=0).view(n, 1, -1, 1).expand(n, 3, height, width))
    padded = padded.gather(3, x.clamp(min=0).view(n, 1, 1, -1).expand(n, 3, height, width))
    fills = upload(whole(numbers[:, 5:8], 0, 255).astype(np.uint8), images.device).view(n, 3, 1, 1)
    return torch.where((y < 0).view(n, 1, -1, 1) | (x < 0).view(n, 1, 1, -1), fills, padded)


def _beyond(
    starts: NDArray[np.int32], sizes: NDArray[np.int32], edges: NDArray[np.int32], count: int
) -> NDArray[np.int64]:
    """Return the pixels of axes of `sizes` at `count` places from `starts` on, int64 (n, count)."""
    places = np.arange(count)
    rows = zip(starts.tolist(), sizes.tolist(), edges.tolist(), strict=True)
    return np.stack([beyond(places + start, size, Edge(edge)) for start, size, edge in rows])
