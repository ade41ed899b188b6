"""`targets`: fields with masks, boxes and keypoints that get the crop, flip and warps of their image."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import places
from iofast.errors import DecodeError, OptionError, shown
from iofast.transforms.crop_box import CropBox


@dataclass(frozen=True, slots=True)
class TargetField:
    """What a field holds: "mask", whose value outside of the image is `fill`, "boxes" or "keypoints".

    `box_format` is "xyxy" or "xywh".
    """

    kind: str
    fill: int = 0
    box_format: str = "xyxy"

    def follow(self, value: Any, crop: CropBox, size: tuple[int, int]) -> Any:
        """Move `value`, of an upright image of `size` (width, height), as `crop` describes.

        A mask becomes a tensor (height, width, …), a plain list of boxes float32 (n, 4); other JSON keeps its form.
        Boxes are clipped. A box of which nothing is left is removed, with its entry in lists of equal length.
        Raises `DecodeError`.
        """
        if self.kind == "mask":
            return _mask(value, crop, size, self.fill)
        plain: Any = value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value
        boxes = self.kind == "boxes"
        moved = places.follow(plain, crop, boxes=boxes, points=not boxes, box_format=self.box_format)
        if boxes and isinstance(plain, list) and not (plain and isinstance(plain[0], dict)):
            return torch.tensor(moved, dtype=torch.float32).reshape(-1, 4)
        return moved


def targets_of(option: Mapping[str, str] | None) -> dict[str, TargetField]:
    """Parse the option `targets`: field -> "mask", "mask:255" (its fill), "boxes", "boxes:xywh" or "keypoints".

    Raises `OptionError`.
    """
    if option is None:
        return {}
    if not isinstance(option, Mapping):
        raise OptionError(f"targets must map fields to mask, boxes or keypoints, found {shown(option)}")
    return {name: _target(name, value) for name, value in option.items()}


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
        raise DecodeError(f"a mask must be an array of two dimensions or more, found {type(value).__name__}")
    if value.shape[1::-1] != size:
        found = f"{value.shape[1]} x {value.shape[0]}"
        raise DecodeError(f"a mask must have the size of its image, {size[0]} x {size[1]}, found {found}")
    moved: NDArray[Any] = np.ascontiguousarray(crop.mask(value, fill))
    return torch.from_numpy(moved.astype(np.int32) if moved.dtype == np.uint16 else moved)
