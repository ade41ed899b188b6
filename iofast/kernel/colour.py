"""Images as a viewer shows them: converted from their colour profile to sRGB, with a background under transparency.

Loaders do neither, nor does Pillow's `convert("RGB")`. Packing does both when it encodes an image, because the result
has neither profile nor alpha.
"""

from functools import lru_cache
from io import BytesIO
from itertools import product
from typing import Any

import numpy as np
from PIL import Image, ImageChops, features

from iofast.errors import DecodeError
from iofast.kernel import pillow
from iofast.kernel.contract import TranscodeRecipe, levels_of

MAX_PROFILE = 4 << 20  # bytes; a printer's tables have half a megabyte, rarely two
_SAME = 3  # levels: vendors' sRGB profiles differ by up to 2, other colour spaces by dozens
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}  # by components


@lru_cache(64)  # photographs of one set share a few profiles; making a transform takes as long as three images
def transform(profile: bytes, mode: str) -> object | None:
    """Return Pillow's transform of `mode` (L, RGB, CMYK) to sRGB, an `ImageCmsTransform`.

    None if it changes nothing visible, or if the profile is broken or for another mode: viewers ignore such profiles
    too. Raises `DecodeError` if Pillow lacks LittleCMS.
    """
    if not profile or len(profile) > MAX_PROFILE or mode not in _MODES.values():
        return None
    if not features.check("littlecms2"):
        raise DecodeError("its colour profile needs a Pillow with LittleCMS, or icc='drop'")
    from PIL import ImageCms  # here, because it takes 5 ms and few images need it

    try:
        opened = ImageCms.getOpenProfile(BytesIO(profile))
        to_rgb = ImageCms.buildTransform(opened, ImageCms.createProfile("sRGB"), mode, "RGB")
        return None if mode == "RGB" and _changes_little(to_rgb) else to_rgb
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None


def _changes_little(to_rgb: object) -> bool:
    levels = np.array(list(product(range(0, 256, 51), repeat=3)), np.uint8)[None]
    converted = np.asarray(to_rgb.apply(Image.fromarray(levels)))  # type: ignore[attr-defined]
    return bool(np.abs(converted.astype(int) - levels).max() <= _SAME)


def needs_conversion(profile: bytes, components: int) -> bool:
    """Whether this profile makes an image of so many components differ from sRGB."""
    return bool(profile) and transform(profile, _MODES.get(components, "")) is not None


def has_alpha(image: Image.Image) -> bool:
    """Whether pixels may be transparent."""
    return image.mode in pillow.ALPHA or "transparency" in image.info


def profile_of(image: Image.Image) -> bytes:
    """Return the embedded profile, or b""."""
    profile = image.info.get("icc_profile")
    return profile if isinstance(profile, bytes) else b""


def describes(profile: bytes, image: Image.Image) -> bool:
    """Whether the colour space of a profile is that of `image`, which is `L` or `RGB`."""
    return profile[16:20] == (b"GRAY" if image.mode == "L" else b"RGB ")


def is_shown_otherwise(image: Image.Image, *, icc: bool, background: bool) -> bool:
    """Whether `to_srgb` (if `icc`) or `lay_over` (if `background`) would change pixels; decodes nothing."""
    mode = image.mode if image.mode in ("L", "CMYK") else "L" if image.mode in pillow.GRAY else "RGB"
    return (background and has_alpha(image)) or (icc and transform(profile_of(image), mode) is not None)


def to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """Convert an `L`, `RGB` or `CMYK` image to `L` or `RGB` in sRGB; return it unchanged if the profile has no effect.

    Consumes its argument, as do `split_alpha` and `lay_over`.
    """
    to_rgb: Any = transform(profile, image.mode)
    if to_rgb is None:
        return image
    converted: Image.Image
    if image.mode == "RGB":
        converted = to_rgb.apply_in_place(image)
        return converted
    converted = pillow.replaced(image, to_rgb.apply(image))
    return converted.getchannel(1) if image.mode == "L" else converted


def split_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Return an image without its alpha, and its alpha (`L`), or None if every pixel is opaque."""
    if not has_alpha(image):
        return image, None
    mode = "LA" if image.mode in pillow.GRAY else "RGBA"
    whole = image if image.mode == mode else pillow.replaced(image, image.convert(mode))
    alpha = whole.getchannel("A")
    whole.info.clear()  # else Pillow warns of transparency that the next mode cannot hold
    return pillow.plain(whole), alpha if alpha.getextrema() != (255, 255) else None


def lay_over(image: Image.Image, alpha: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Blend an `L` or `RGB` image over a background."""
    if image.mode == "L" and len(set(background)) > 1:
        image = pillow.replaced(image, image.convert("RGB"))
    image.paste(background[0] if image.mode == "L" else background, mask=ImageChops.invert(alpha))
    return image


def opaque(image: Image.Image, profile: bytes, recipe: TranscodeRecipe) -> tuple[Image.Image, bytes]:
    """Convert a decoded image to opaque grayscale (`L`) or colour (`RGB`); return the profile still to be converted."""
    profile = b"" if recipe.icc == "drop" else profile
    alpha = None
    if recipe.background != "drop":
        image, alpha = split_alpha(image)
    if image.mode in ("CMYK", "LAB"):  # the profile describes these values, not Pillow's conversion to RGB
        image, profile = to_srgb(image, profile), b""
    profile = b"" if recipe.icc == "keep" else profile
    image = pillow.plain(image)
    if alpha is None:
        return image, profile
    background = levels_of(recipe.background or "white")  # a colour in sRGB
    return lay_over(to_srgb(image, profile), alpha, background), b""


def blank(image: Image.Image, size: tuple[int, int], colour: tuple[int, int, int]) -> Image.Image:
    """Return a plain canvas for `image`: gray if the image and the colour are."""
    gray = image.mode == "L" and len(set(colour)) == 1
    return Image.new("L", size, colour[0]) if gray else Image.new("RGB", size, colour)
