"""Pixel operations against torchvision's formula in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iofast.errors import OptionError
from iofast.ops import Normalize, Op
from iofast.pixels import apply, check_dtype, torch_pixels

FORMATS = [torch.contiguous_format, torch.channels_last]
IMAGENET = Normalize.imagenet()


def pictures(n: int = 3, height: int = 8, width: int = 5, layout: torch.memory_format = FORMATS[1]) -> torch.Tensor:
    """All levels in all channels."""
    levels = torch.arange(n * 3 * height * width) * 7 % 256
    return levels.to(torch.uint8).view(n, 3, height, width).contiguous(memory_format=layout)


def expected(images: torch.Tensor, ops: Sequence[Op]) -> torch.Tensor:
    """ToTensor and Normalize as documented by torchvision."""
    result = images.to(torch.float64) / 255
    for op in ops:
        mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (op.mean, op.std))
        result = (result - mean) / std
    return result


@pytest.mark.parametrize("given_layout", FORMATS)
@pytest.mark.parametrize("wanted_layout", FORMATS)
@pytest.mark.parametrize("dtype", torch_pixels.FLOATS)
@pytest.mark.parametrize("ops", [(), (IMAGENET,), (IMAGENET, Normalize((0.1, 0.2, 0.3), (2.0, 3.0, 4.0), max_value=1))])
def test_values_dtype_and_layout(
    ops: tuple[Op, ...], dtype: torch.dtype, wanted_layout: torch.memory_format, given_layout: torch.memory_format
) -> None:
    """float32 arithmetic is within 1e-6 of float64. Other types are cast from its results."""
    images = pictures(n=4, height=32, width=17, layout=given_layout)
    before = images.clone()
    result, single = (apply(images, ops, dtype=each, memory_format=wanted_layout) for each in (dtype, torch.float32))
    assert result.is_contiguous(memory_format=wanted_layout)
    assert torch.equal(images, before)
    assert result.dtype == dtype
    assert torch.equal(result, single.to(dtype))
    torch.testing.assert_close(single.double(), expected(images, ops), rtol=0, atol=1e-6)


@given(
    shape=st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(1, 9)),
    chunk=st.integers(1, 700),
    layout=st.sampled_from(FORMATS),
)
def test_the_chunk_size_does_not_change_results(
    shape: tuple[int, int, int], chunk: int, layout: torch.memory_format
) -> None:
    images = pictures(*shape, layout=layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_pixels, "_CHUNK", chunk)
        result = apply(images, [IMAGENET], memory_format=layout)
    assert result.is_contiguous(memory_format=layout)
    torch.testing.assert_close(result.double(), expected(images, [IMAGENET]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("layout", FORMATS)
def test_the_default_layout_is_that_of_the_images(layout: torch.memory_format) -> None:
    for dtype in (torch.float32, torch.uint8):
        assert apply(pictures(layout=layout), dtype=dtype).is_contiguous(memory_format=layout)


def test_views_that_are_contiguous_in_no_layout() -> None:
    images = pictures(4, 20, 20)[::2, :, 3:11, ::3]
    for layout in FORMATS:
        result = apply(images, [IMAGENET], memory_format=layout)
        torch.testing.assert_close(result.double(), expected(images, [IMAGENET]), rtol=0, atol=1e-6)


def test_uint8_passes_through() -> None:
    images = pictures(layout=torch.channels_last)
    same, other = (apply(images, dtype=torch.uint8, memory_format=layout) for layout in FORMATS[::-1])
    assert same.data_ptr() == images.data_ptr()
    assert other.is_contiguous()
    assert torch.equal(other, images)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_out(dtype: torch.dtype, layout: torch.memory_format) -> None:
    images = pictures()
    out = torch.full_like(images, 7, dtype=dtype, memory_format=layout)
    assert apply(images, [IMAGENET], dtype=dtype, memory_format=layout, out=out) is out
    assert torch.equal(out, apply(images, [IMAGENET], dtype=dtype))
    for wrong in (out[1:], out.to(torch.float16), out.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)):
        with pytest.raises(OptionError, match="out must be"):
            apply(images, [IMAGENET], dtype=dtype, memory_format=layout, out=wrong)


@pytest.mark.gpu
def test_a_gpu_computes_the_same() -> None:
    images = pictures(64, 33, 21)
    for layout, dtype in ((layout, dtype) for layout in FORMATS for dtype in torch_pixels.FLOATS):
        result = apply(images.cuda(), [IMAGENET], dtype=dtype, memory_format=layout)
        assert result.is_cuda
        assert result.is_contiguous(memory_format=layout)
        assert torch.equal(result.cpu(), apply(images, [IMAGENET], dtype=dtype))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: check_dtype([IMAGENET], torch.uint8), "float dtype"),
        (lambda: check_dtype([], torch.int32), "dtype must"),
        (lambda: check_dtype([], torch.complex64), "dtype must"),
        (lambda: apply(pictures(), [IMAGENET], dtype=torch.uint8), "float dtype"),
        (lambda: apply(pictures().float()), "uint8"),
        (lambda: apply(pictures()[0]), "shape"),
        (lambda: apply(pictures()[:, :2]), "shape"),
        (lambda: apply(pictures(), memory_format=torch.channels_last_3d), "memory_format"),
    ],
)
def test_impossible_options_are_refused(make: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()  # type: ignore[operator]


def test_possible_dtypes() -> None:
    check_dtype([], torch.uint8)
    for dtype in torch_pixels.FLOATS:
        check_dtype([IMAGENET], dtype)
