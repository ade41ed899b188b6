"""Defects that the kernel once had, each as the smallest case that showed it."""

import resource

import numpy as np
import pytest
from at_once import in_child
from kernel_images import KINDS, Pixels, exif, jpeg, photo, upright, with_size
from PIL import Image

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import native
from iofast.kernel.contract import TranscodeRecipe


@pytest.mark.parametrize("size", [None, 67, 97, 111])
def test_an_odd_edge_keeps_its_colour(size: int | None) -> None:
    """The centre of the last chroma sample is on the far edge, where the box filter had no input and gave 0.

    Without a resize, from the far end an odd image begins inside its last chroma sample.
    """
    colour, recipe = (200, 60, 40), TranscodeRecipe(size=size, mode="exact" if size else "none", filter="box")
    for subsampling, orientation in zip(("4:2:0", "4:2:2", "4:4:4", *["4:2:0"] * 5), range(1, 9), strict=True):
        flat = np.full((64, 64, 3) if size else (53, 71, 3), colour, np.uint8)
        data = jpeg(flat, subsampling=subsampling, exif=exif(orientation))
        assert np.abs(np.asarray(upright(kernel.transcode(data, recipe).data), int) - colour).max() <= 4


def _wave(width: int, height: int) -> Pixels:
    wave = (128 + 100 * np.sin(np.arange(width) * (np.pi / 100))).round().astype(np.uint8)
    return np.broadcast_to(wave[None, :, None], (height, width, 3)).copy()


@pytest.mark.parametrize("subsampling", ["444", "420"])
@pytest.mark.parametrize("orientation", [1, 2])
def test_reduced_decoding_moves_nothing(orientation: int, subsampling: str) -> None:
    """3001 pixels are 375.125 at 1/8; rounding to 376 moved the far side by a third of a result pixel."""
    data = jpeg(_wave(3001, 403), quality=98, exif=exif(orientation))
    recipe = TranscodeRecipe(size=180, mode="long", quality=100, subsampling=subsampling, reducing_gap=2)
    found = np.asarray(upright(kernel.transcode(data, recipe).data).convert("L"), float).mean(0)
    whole = upright(data, orientation).resize(recipe.framing(3001, 403).size, Image.Resampling.BILINEAR)
    wanted = np.asarray(whole.convert("L"), float).mean(0)
    slope = np.gradient(wanted)
    for part in (slice(2, 60), slice(60, 120), slice(120, 178)):
        shift = ((found - wanted) * slope)[part].sum() / (slope**2)[part].sum()
        assert abs(shift) < 0.03


@pytest.mark.parametrize("kind", ["420", "progressive"])
def test_memory_does_not_depend_on_the_size_in_the_header(kind: str) -> None:
    """A few KiB that claim 16,000 x 16,000 pixels took 800 MB: libjpeg filled the rest in advance."""
    data = with_size(KINDS[kind](photo(64, 64)), 16_000, 16_000)

    def is_small() -> bool:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(DecodeError):
            native.transcode(data, TranscodeRecipe(size=256, mode="short"))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB

    assert in_child(is_small) == 0
