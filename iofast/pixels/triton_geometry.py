"""The geometry pass in Triton: identical to torch_geometry.resample, with optional normalisation.

The first kernel writes a small table: start and weights of each output row and column of each image. The second makes
the outputs in one pass instead of a horizontal and a vertical one. Most crops of packed photographs are enlarged, with
two taps per axis, so intermediate rows would take as many bytes as input and output together. Each lane computes the
three channels of a pixel. With one channel per lane an enlarged pixel would need 36 loads instead of 20, and loads
dominate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from iofast.ops import Op, affine
from iofast.pixels.torch_geometry import FRACTION, PRECISION, RaggedBatch, check_boxes, taps
from iofast.pixels.upload import upload

_PRECISION = tl.constexpr(PRECISION)
_FIRST, _FIRST_HALF = tl.constexpr(PRECISION - FRACTION), tl.constexpr(1 << PRECISION - FRACTION - 1)
_SECOND, _SECOND_HALF = tl.constexpr(PRECISION + FRACTION), tl.constexpr(1 << PRECISION + FRACTION - 1)

# Columns of the table: the box, the taps in x and y, height and width of the image, whether it is mirrored.
_TAPS, _SIZE, _FLIP, _COLUMNS = tl.constexpr(8), tl.constexpr(10), tl.constexpr(12), tl.constexpr(13)
# Arguments that vary between batches. Triton would specialise for 1 and multiples of 16, and compile for a second or
# more in the middle of an epoch.
_VARYING = ("n_images", "most")
_BLOCK, _WARPS = 512, 8  # two pixels per lane: 40 registers leave an SM enough warps to hide memory latency


@triton.jit(do_not_specialize=_VARYING)
def _windows(table, starts, weights, n_images, height, width, side, most, BLOCK: tl.constexpr):
    """Write starts (2, N, side) and weights (2, N, side, most) of the axes x and y, as torch_geometry.axis does."""
    n, at = tl.program_id(0).to(tl.int64), tl.program_id(2)
    outputs = tl.where(at == 0, width, height)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = table + n * _COLUMNS
    low = tl.load(own + at).to(tl.int64)
    length = tl.load(own + 2 + at).to(tl.int64) - low
    virtual = tl.load(own + 4 + at).to(tl.int64)
    window = tl.load(own + 6 + at).to(tl.int64)
    mirrored = (tl.load(own + _FLIP) != 0) & (at == 0)
    place = tl.minimum(window + tl.where(mirrored, outputs - 1 - index, index), virtual - 1)
    reach = 2 * tl.maximum(length, virtual)
    centre = (2 * place + 1) * length
    before = tl.maximum(centre - reach - virtual + 2 * virtual, 0)  # dividends must not be negative
    first = before // (2 * virtual)
    count = tl.load(own + _TAPS + at)
    total = first * 0
    for tap in range(count):
        total += _triangle(first + tap, centre, reach, virtual, length)
    total = tl.maximum(total, 1)  # lanes behind the last output
    row = (at * n_images + n) * side + index
    tl.store(starts + row, (low + first).to(tl.int32), mask=index < outputs)
    sums, last = first * 0, first * 0
    for tap in range(count):
        sums += _triangle(first + tap, centre, reach, virtual, length)
        rounded = ((sums << _PRECISION) + total // 2) // total
        tl.store(weights + row * most + tap, (rounded - last).to(tl.int16), mask=index < outputs)
        last = rounded


@triton.jit
def _triangle(x, centre, reach, virtual, length):
    """Return the unscaled weight of source pixel x; 0 beyond the region."""
    return tl.where(x < length, tl.maximum(reach - tl.abs((2 * x + 1) * virtual - centre), 0), 0)


@triton.jit
def _stored(out, place, mask, sums, constants, channel, SCALED: tl.constexpr):
    """Round the sums of one channel to levels, normalise them if SCALED, and store them."""
    value = (sums + _SECOND_HALF) >> _SECOND
    if SCALED:
        value = value.to(tl.float32) * tl.load(constants + channel) + tl.load(constants + 3 + channel)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_VARYING)
def _resample(
    data,
    offsets,
    table,
    starts,
    weights,
    constants,
    out,
    n_images,
    height,
    width,
    side,
    most,
    LAST: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < height * width
    image = data + tl.load(offsets + n)
    own = table + n * _COLUMNS
    wide = tl.load(own + _SIZE + 1)
    x_row, y_row = n * side + pixel % width, (n_images + n) * side + pixel // width
    x_start, y_start = tl.load(starts + x_row, mask=inside, other=0), tl.load(starts + y_row, mask=inside, other=0)
    x_taps, y_taps = tl.load(own + _TAPS), tl.load(own + _TAPS + 1)
    red, green, blue = pixel * 0, pixel * 0, pixel * 0
    for y_tap in range(y_taps):
        y_weight = tl.load(weights + y_row * most + y_tap, mask=inside, other=0).to(tl.int32)
        line_red, line_green, line_blue = pixel * 0, pixel * 0, pixel * 0
        for x_tap in range(x_taps):
            x_weight = tl.load(weights + x_row * most + x_tap, mask=inside, other=0).to(tl.int32)
            used = (x_weight > 0) & (y_weight > 0)  # pixels without weight may lie outside the image
            place = image + ((y_start + y_tap) * wide + x_start + x_tap) * 3
            line_red += x_weight * tl.load(place, mask=used, other=0).to(tl.int32)
            line_green += x_weight * tl.load(place + 1, mask=used, other=0).to(tl.int32)
            line_blue += x_weight * tl.load(place + 2, mask=used, other=0).to(tl.int32)
        red += y_weight * ((line_red + _FIRST_HALF) >> _FIRST)
        green += y_weight * ((line_green + _FIRST_HALF) >> _FIRST)
        blue += y_weight * ((line_blue + _FIRST_HALF) >> _FIRST)
    place, step = n * height * width * 3 + pixel, height * width
    if LAST:
        place, step = (n * height * width + pixel) * 3, 1
    _stored(out, place, inside, red, constants, 0, SCALED)
    _stored(out, place + step, inside, green, constants, 1, SCALED)
    _stored(out, place + 2 * step, inside, blue, constants, 2, SCALED)


def resample(
    batch: RaggedBatch,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    size: tuple[int, int],
    ops: Sequence[Op] = (),
    *,
    dtype: torch.dtype = torch.uint8,
    memory_format: torch.memory_format = torch.channels_last,
) -> torch.Tensor:
    """Run `torch_geometry.resample` and, for a float `dtype`, the `Normalize` of `ops` in one pass.

    The result is (N, 3, height, width) of `dtype` and `memory_format`. It and the tables are on the device of `batch`.
    """
    check_boxes(batch, boxes, flips, size)
    n, (height, width), device = len(batch), size, batch.data.device
    out = torch.empty((n, 3, height, width), dtype=dtype, device=device, memory_format=memory_format)
    if not n:
        return out
    counts = np.stack([taps(boxes, at) for at in (0, 1)], axis=1)
    side, most = max(size), int(counts.max())
    # one copy instead of four: each takes the host as long as a pass takes the device
    columns = np.concatenate((boxes, counts, batch.sizes, flips[:, None]), axis=1).astype(np.int32)
    table, offsets = upload(columns, device), upload(batch.offsets, device)
    starts = torch.empty((2, n, side), dtype=torch.int32, device=device)
    weights = torch.empty((2, n, side, most), dtype=torch.int16, device=device)
    _windows[(n, triton.cdiv(side, 128), 2)](table, starts, weights, n, height, width, side, most, BLOCK=128)
    constants = upload(affine(ops).ravel().astype(np.float32), device)
    _resample[(n, triton.cdiv(height * width, _BLOCK))](
        batch.data,
        offsets,
        table,
        starts,
        weights,
        constants,
        out,
        n,
        height,
        width,
        side,
        most,
        LAST=memory_format == torch.channels_last,
        SCALED=dtype != torch.uint8,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
        enable_fp_fusion=False,  # the torch oracle rounds each result separately
    )
    return out
