"""Masks, boxes and keypoints that go through the same crop, flip and warps as the image beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import places
from iofast.errors import DecodeError, OptionError, shown
from iofast.transforms.crop_box import CropBox

KINDS = ("mask", "boxes", "keypoints")


@dataclass(frozen=True, slots=True)
class TargetField:
    """What a field holds. `fill`: of a mask, where there is no image; `box_format`: of boxes, "xyxy" or "xywh"."""

    kind: str
    fill: int = 0
    box_format: str = "xyxy"

    def boxes(self, value: Any) -> list[tuple[float, ...]]:
        """Left, top, right and lower edge of the boxes in `value`; none where it holds something else."""
        return places.boxes_of(_plain(value), self.box_format) if self.kind == "boxes" and value is not None else []

    def follow(self, value: Any, crop: CropBox, size: tuple[int, int], *, centres: bool = False) -> Any:
        """`value`, of an upright image of `size` (width, height), as `crop` says. Raises `DecodeError`.

        A mask becomes a tensor (height, width, …) of the result, a plain list of boxes float32 (n, 4); of other JSON
        the form stays. Boxes are clipped; one of which nothing is left goes, with its entry in lists as long, and with
        `centres` one whose middle is cut off.
        """
        if self.kind == "mask":
            return _mask(value, crop, size, self.fill)
        plain, boxes = _plain(value), self.kind == "boxes"
        made = places.follow(plain, crop, boxes=boxes, points=not boxes, box_format=self.box_format, centres=centres)
        if boxes and isinstance(plain, list) and not (plain and isinstance(plain[0], dict)):
            return torch.tensor(made, dtype=torch.float32).reshape(-1, 4)
        return made


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value


def targets_of(given: Mapping[str, str] | None) -> dict[str, TargetField]:
    """Fields with what they hold: "mask", "mask:255" (its fill), "boxes", "boxes:xywh", "keypoints"."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(f"targets must map fields to mask, boxes or keypoints, found {shown(given)}")
    return {name: _target(name, value) for name, value in given.items()}


def _target(name: str, value: object) -> TargetField:
    kind, _, more = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind == "mask" and (not more or more.isdecimal()):
        return TargetField(kind, fill=int(more or 0))
    if kind == "boxes" and more in ("", *places.BOX_FORMATS):
        return TargetField(kind, box_format=more or "xyxy")
    if kind == "keypoints" and not more:
        return TargetField(kind)
    raise OptionError(f"targets[{name!r}] must be mask, mask:255, boxes, boxes:xywh or keypoints, found {shown(value)}")


def _mask(value: Any, crop: CropBox, size: tuple[int, int], fill: int) -> torch.Tensor:
    if not isinstance(value, np.ndarray) or value.ndim < 2:
        raise DecodeError(f"a mask is an array of two dimensions or more, found {type(value).__name__}")
    if value.shape[1::-1] != size:
        found = f"{value.shape[1]} x {value.shape[0]}"
        raise DecodeError(f"the mask has {found} pixels, and its image {size[0]} x {size[1]}")
    made: NDArray[Any] = np.ascontiguousarray(crop.mask(value, fill))
    return torch.from_numpy(made.astype(np.int32) if made.dtype == np.uint16 else made)


def padded(masks: list[torch.Tensor], fill: int) -> torch.Tensor:
    """(N, height, width, …) of the largest height and width, masks at the upper left, `fill` elsewhere."""
    height, width = max(mask.shape[0] for mask in masks), max(mask.shape[1] for mask in masks)
    batch = masks[0].new_full((len(masks), height, width, *masks[0].shape[2:]), fill)
    for row, mask in enumerate(masks):
        batch[row, : mask.shape[0], : mask.shape[1]] = mask
    return batch
