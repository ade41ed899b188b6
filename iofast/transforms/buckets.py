"""ResizeToBucket: several output sizes, so that little of an image is cut off."""

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from iofast.arguments import checked
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.order import nearest
from iofast.transforms.arguments import Pair, pair
from iofast.transforms.resized_crops import ResamplingCrop
from iofast.transforms.transform import Boxes, Floats


@checked()
class ResizeToBucket(ResamplingCrop):
    """Crop and resample each image to the size (height, width) of `sizes` with the nearest aspect ratio.

    The crop is the largest part with that aspect ratio, in the centre or, with `random`, anywhere. A smaller image is
    enlarged. `nearest(sizes, …)` chooses the size; with `order.Buckets(sizes)` all images of a batch get one size.
    """

    sizes: Sequence[Pair]
    interpolation: str = "bilinear"
    random: bool = False
    antialias: bool | None = field(default=True, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Sequence) or isinstance(self.sizes, str) or not self.sizes:
            raise OptionError(f"ResizeToBucket: sizes must be pairs (height, width), found {self.sizes!r}")
        sizes = tuple(pair("ResizeToBucket: each of sizes", size) for size in self.sizes)
        ratios = [width / height for height, width in sizes]
        if len(set(ratios)) < len(ratios):
            raise OptionError(f"ResizeToBucket: sizes must differ in aspect ratio, found {sizes}")
        object.__setattr__(self, "sizes", sizes)
        super().__post_init__()

    def fixed(self, resized: Pair | None) -> Pair | None:  # noqa: ARG002  Pad needs it
        return None

    def boxes(self, draw: Draw, widths: Floats, heights: Floats) -> Boxes:
        """The part of each image that is kept. Lanes 0 and 1 of "crop": top, left."""
        wide, high = self.outputs(widths, heights)
        w = np.minimum(widths, np.maximum(np.rint(heights * wide / high), 1))
        h = np.minimum(heights, np.maximum(np.rint(widths * high / wide), 1))
        if not self.random:
            return Boxes(np.rint((widths - w) / 2), np.rint((heights - h) / 2), w, h)
        u = draw.uniform("crop", 2)
        return Boxes(np.floor(u[:, 1] * (widths - w + 1)), np.floor(u[:, 0] * (heights - h + 1)), w, h)

    def outputs(self, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
        sizes = np.array(self.sizes, np.float64)[nearest(self.sizes, widths, heights)]
        return sizes[:, 1], sizes[:, 0]
