"""What a viewer shows of an image: its colour profile turned into sRGB, transparency laid over a background.

Loaders do neither (nor does Pillow's `convert("RGB")`); packing does both wherever it encodes an image, for what it
writes has neither profile nor alpha to say otherwise.
"""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO
from itertools import product

import numpy as np
from PIL import Image, ImageChops, features

from iofast.errors import DecodeError
from iofast.kernel import pillow

MAX_PROFILE = 4 << 20  # bytes; a printer's tables have half a megabyte, rarely two
_SAME = 3  # levels: vendors' sRGB profiles differ by up to 2, any other colour space by dozens
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}  # by components


@lru_cache(16)  # photographs of one set share a few profiles
def transform(profile: bytes, mode: str) -> object | None:
    """Pillow's transform of `mode` (L, RGB, CMYK) to sRGB, an `ImageCmsTransform`.

    None where that changes nothing that one could see, and where the profile is broken or for other images than these:
    viewers ignore such profiles too. Raises `DecodeError` where Pillow lacks LittleCMS.
    """
    if not profile or len(profile) > MAX_PROFILE or mode not in _MODES.values():
        return None
    if not features.check("littlecms2"):
        raise DecodeError("its colour profile needs a Pillow with LittleCMS, or icc='drop'")
    from PIL import ImageCms  # 5 ms, for the few that need it

    try:
        found = ImageCms.getOpenProfile(BytesIO(profile))
        made = ImageCms.buildTransform(found, ImageCms.createProfile("sRGB"), mode, "RGB")
        return None if mode == "RGB" and _changes_little(made) else made
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None


def _changes_little(made: object) -> bool:
    steps = np.array(list(product(range(0, 256, 51), repeat=3)), np.uint8)[None]
    found = np.asarray(made.apply(Image.fromarray(steps)))  # type: ignore[attr-defined]
    return bool(np.abs(found.astype(int) - steps).max() <= _SAME)


def needs_conversion(profile: bytes, components: int) -> bool:
    """Whether an image of so many components means something else than sRGB by this profile."""
    return bool(profile) and transform(profile, _MODES.get(components, "")) is not None


def has_alpha(image: Image.Image) -> bool:
    """Whether some of it may be transparent."""
    return image.mode in pillow.ALPHA or "transparency" in image.info


def profile_of(image: Image.Image) -> bytes:
    """The embedded profile, empty where there is none."""
    profile = image.info.get("icc_profile")
    return profile if isinstance(profile, bytes) else b""


def describes(profile: bytes, image: Image.Image) -> bool:
    """Whether a profile is for pixels such as those of `image`, `L` or `RGB`: by the colour space that it names."""
    return profile[16:20] == (b"GRAY" if image.mode == "L" else b"RGB ")


def is_shown_otherwise(image: Image.Image, *, icc: bool, background: bool) -> bool:
    """Whether `to_srgb` or `lay_over`, where they are wanted, would change pixels; decodes nothing."""
    mode = image.mode if image.mode in ("L", "CMYK") else "L" if image.mode in pillow.GRAY else "RGB"
    return (background and has_alpha(image)) or (icc and transform(profile_of(image), mode) is not None)


def to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """An `L`, `RGB` or `CMYK` image as `L` or `RGB`, its numbers those of sRGB; as it is where that is the same.

    The image that is given is used up, here and in the functions below.
    """
    made = transform(profile, image.mode)
    if made is None:
        return image
    if image.mode == "RGB":
        same: Image.Image = made.apply_in_place(image)  # type: ignore[attr-defined]
        return same
    shown: Image.Image = pillow.replaced(image, made.apply(image))  # type: ignore[attr-defined]
    return shown.getchannel(1) if image.mode == "L" else shown


def split_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """An image without its alpha, and its alpha (`L`) where it has some that is not all opaque."""
    if not has_alpha(image):
        return image, None
    mode = "LA" if image.mode in pillow.GRAY else "RGBA"
    whole = image if image.mode == mode else pillow.replaced(image, image.convert(mode))
    alpha = whole.getchannel("A")
    whole.info.clear()  # else Pillow warns of transparency that the next mode has no place for
    return pillow.plain(whole), alpha if alpha.getextrema() != (255, 255) else None


def lay_over(image: Image.Image, alpha: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """An `L` or `RGB` image blended over a background."""
    if image.mode == "L" and len(set(background)) > 1:
        image = pillow.replaced(image, image.convert("RGB"))
    image.paste(background[0] if image.mode == "L" else background, mask=ImageChops.invert(alpha))
    return image


def blank(image: Image.Image, size: tuple[int, int], colour: tuple[int, int, int]) -> Image.Image:
    """A plain picture to put `image` on: gray if both are."""
    gray = image.mode == "L" and len(set(colour)) == 1
    return Image.new("L", size, colour[0]) if gray else Image.new("RGB", size, colour)
