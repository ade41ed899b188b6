"""What works without the native module: packing with --resize; crops, resizes, flips and Normalize when loading."""

import os
from io import BytesIO
from typing import Any, NoReturn

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError
from iofast.kernel import colour, contract, depth, memory, other_formats, pillow
from iofast.kernel.contract import DecodeOptions, Finish, Payloads, Status, Transcoded, TranscodeRecipe, beyond
from iofast.kernel.other_formats import decode as decode
from iofast.kernel.other_formats import read_header as read_header

# members of a recipe; others must have their defaults
_MEMBERS = "size mode only_shrink filter quality subsampling restart reducing_gap max_pixels max_memory icc background"


def _refuse(what: str) -> NoReturn:
    remedy = "install a wheel, or apt-get install gcc python3-dev libjpeg-dev and install iofast again"
    raise OptionError(f"{what} needs iofast's native kernel, which is missing here: {remedy}")


class Context:
    """Options and counts of one thread. Nothing is timed."""

    read_ns = 0

    def __init__(self, options: DecodeOptions, *, timed: str | None = None, decoder: str | None = None) -> None:
        if decoder or timed == "all" or options.clip or options.exact or options.filter not in pillow.FILTERS:
            _refuse("measuring stages, a padding crop, exact resampling or interpolation without antialias")
        self.options, self.decoded = options, 0

    def counts(self) -> contract.Counts:
        """Return the images decoded so far; all times are zero."""
        ways = dict.fromkeys(contract.WAYS, 0) | {"pillow": self.decoded}
        return contract.Counts(ways, dict.fromkeys(contract.STAGES, 0))

    def close(self) -> None:
        """There is nothing to free."""


def decode_batch(
    context: Context,
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    out: NDArray[Any],
    status: NDArray[np.int32],
    start: int,
    stop: int,
    finish: Finish | None = None,
) -> None:
    """See `native_batch.decode_batch`."""
    if (source.indexed is not None and source.indexed[start:stop, 0].any()) or (flips[start:stop] > 1).any():
        _refuse("loading raw pixels, several views of an image or with a random filter")
    pixels = np.zeros((stop - start, *out.shape[1:]), np.uint8)
    for row in range(start, stop):
        try:
            made = _window(source, row, boxes[row].tolist(), pixels.shape[2:0:-1], context.options)
            pixels[row - start] = made[:, ::-1] if flips[row] else made
            status[row] = Status.OK
        except Exception as error:  # damaged images raise anything; one row must never end a batch
            status[row] = pillow.failure(error).status
    failed = status[start:stop] != Status.OK
    context.decoded += int((~failed).sum())
    if finish is None:
        out[start:stop] = pixels
    else:
        finish_batch(context, pixels, finish, out[start:stop])
        out[start:stop][failed] = 0


def _window(source: Payloads, row: int, box: list[int], size: tuple[int, ...], options: DecodeOptions) -> NDArray[Any]:
    with other_formats.decoded_row(source, row, options) as stored:
        image = pillow.turn(stored, int(source.orientations[row]))
        x0, y0, x1, y1, width, height, x, y = box
        inside = 0 <= x0 < x1 <= image.width and 0 <= y0 < y1 <= image.height
        if not inside or not 0 <= x <= width - size[0] or not 0 <= y <= height - size[1]:
            raise contract.StatusError(Status.BOX)
        if width * height > options.max_pixels:
            raise beyond("pixels", f"{width}x{height} pixels after resizing, the limit is {options.max_pixels}")
        return np.asarray(pillow.resample(image, tuple(box), (size[0], size[1]), options.filter).convert("RGB"))


def finish_batch(context: Context, images: NDArray[np.uint8], finish: Finish, out: NDArray[Any]) -> None:  # noqa: ARG001
    """See `native_batch.finish_batch`: Normalize only."""
    if finish.work.steps.size or finish.work.erased.size or finish.work.mixes or finish.type == "bfloat16":
        _refuse("colours, warps, erasing, mixing or bfloat16")
    out[...] = images if finish.type == "uint8" else images * finish.scale[0] + finish.scale[1]


def check_recipe(recipe: TranscodeRecipe) -> None:
    """Raise `OptionError` for a recipe that only the native kernel carries out."""
    plain = TranscodeRecipe(**{name: getattr(recipe, name) for name in _MEMBERS.split()})
    refused = recipe != plain, recipe.size is None, recipe.mode == "pad", recipe.icc == "keep"
    if any(refused) or recipe.restart not in (None, 0, "auto"):
        _refuse("packing without resize=, or with format, restart, icc='keep', truncated='accept' or mode='pad',")


def transcode(data: other_formats.Buffer, recipe: TranscodeRecipe) -> Transcoded:
    """See `native.transcode`; the JPEGs have no restart markers."""
    check_recipe(recipe)
    with pillow.as_decode_errors():
        opened = memory.opened(other_formats.as_bytes(data), recipe.max_pixels, recipe.max_memory)
        framing = recipe.framing(*opened.upright(opened.orientation))
        width, height = framing.size
        if width * height > recipe.max_pixels:
            raise beyond("pixels", f"{width}x{height} pixels after resizing, the limit is {recipe.max_pixels}")
        pillow.check_end(opened)
        opened.image.load()
        pixels, profile = colour.opaque(depth.to_bytes(opened.image), colour.profile_of(opened.image), recipe)
        pixels = pillow.turn(pixels, opened.orientation)
        made = pillow.resample(pixels, framing.row, framing.window, recipe.filter)
        made, stream = colour.to_srgb(made, profile), BytesIO()
        made.info.clear()  # else Pillow writes its entries: comments, and profiles
        made.save(stream, "JPEG", quality=recipe.quality, subsampling=":".join(recipe.subsampling))
        return Transcoded(stream.getvalue(), "jpg", *made.size, 1, *framing.original)


def crc32c(data: other_formats.Buffer, value: int = 0) -> int:
    """See `native.crc32c`."""
    return int(google_crc32c.extend(value, other_formats.as_bytes(data)))


def read_rows(fd: int, offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """See `native_batch.read_rows`."""
    rows = [os.pread(fd, size, offset) for offset in offsets.tolist()]
    if any(len(row) < size for row in rows):
        raise EOFError(f"the file ends within {size} bytes from one of the offsets on")
    return np.frombuffer(bytearray().join(rows), np.uint8).reshape(len(rows), size)
