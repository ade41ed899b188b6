"""RandomErasing, against torchvision's documented algorithm written out for one image."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transform_draws import N, work

from iofast import transforms as T
from iofast.choices import Draw
from iofast.transforms.erasing import noise_amounts
from iofast.transforms.transform import Op


class TestRandomErasing:
    @given(
        seed=st.integers(0, 1000),
        size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
        scale=st.sampled_from([(0.02, 0.33), (0.5, 1.0), (0.9, 1.0), (0.0, 0.01)]),
        ratio=st.sampled_from([(0.3, 3.3), (1.0, 1.0), (0.01, 100.0)]),
    )
    def test_against_torchvision(
        self, seed: int, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
    ) -> None:
        width, height = size
        draw = Draw(seed, 0, np.arange(5))
        made = work(T.RandomErasing(0.7, scale, ratio), draw=draw, width=width, height=height)
        for u, box in zip(draw.uniform("erasing", 23).tolist(), made.erased[:, 0].tolist(), strict=True):
            wanted = rectangle(width, height, u[1:], scale, ratio) if u[0] < 0.7 else None
            if wanted is None:
                assert (box[2] - box[0]) * (box[3] - box[1]) == 0
            else:
                assert box == wanted
                assert 0 <= box[0] <= box[2] <= height
                assert 0 <= box[1] <= box[3] <= width

    def test_each_erasing_has_its_value(self) -> None:
        ops: list[Op] = [
            T.RandomErasing(1, value=1.0),
            T.Normalize((0.5,), (0.25,)),
            T.RandomErasing(1, value=[1, 2, 3]),
        ]
        made = work(*ops)
        np.testing.assert_allclose(made.fills[7], [[2, 2, 2], [1, 2, 3]])
        assert noise_amounts(ops).tolist() == [[0, 0, 0], [0, 0, 0]]
        assert noise_amounts([T.RandomErasing(value="random"), T.Normalize((0.5,), (0.25,))]).tolist() == [[4, 4, 4]]
        assert made.erased.shape == (N, 2, 4)
        assert (made.erased[:, 0] != made.erased[:, 1]).any(axis=1).mean() > 0.9


def rectangle(
    width: int, height: int, u: list[float], scale: tuple[float, float], ratio: tuple[float, float]
) -> list[int] | None:
    """torchvision's RandomErasing.get_params; u = place (top, left), then area and ratio of ten attempts."""
    for area_u, ratio_u in zip(u[2::2], u[3::2], strict=True):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * area_u)
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * ratio_u)
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            y, x = int(u[0] * (height - h + 1)), int(u[1] * (width - w + 1))
            return [y, x, y + h, x + w]
    return None


def test_rectangles_share_the_area() -> None:
    made = work(T.RandomErasing(0.7, scale=(0.3, 0.3), ratio=(1, 1), count=(1, 3)))
    y0, x0, y1, x1 = np.moveaxis(made.erased, -1, 0).astype(np.float64)
    areas = (y1 - y0) * (x1 - x0)
    counts = (areas > 0).sum(axis=1)
    assert (counts > 0).mean() == pytest.approx(0.7, abs=0.02)
    for count in (1, 2, 3):
        assert (counts == count).mean() == pytest.approx(0.7 / 3, abs=0.02)
        each = areas[counts == count]
        np.testing.assert_allclose(each[each > 0], 0.3 * 64 * 48 / count, rtol=0.08)
    assert made.fills.shape == (N, 3, 3)
    assert noise_amounts([T.RandomErasing(value="random", count=(1, 3))]).shape == (3, 3)


def test_each_rectangle_has_one_random_colour() -> None:
    made = work(T.Normalize.imagenet(), T.RandomErasing(1, value="color", count=2))
    fills = made.fills.reshape(N, -1)
    assert np.abs(fills.mean(axis=0)).max() < 0.05
    np.testing.assert_allclose(fills.std(axis=0), 1, atol=0.04)
    assert np.abs(np.corrcoef(fills.T) - np.eye(6)).max() < 0.05
    assert not made.noise.any()
    fills = work(T.RandomErasing(1, value="color"), T.Normalize((0.5,), (0.25,))).fills
    assert fills.mean() == pytest.approx(-2, abs=0.1)
    assert fills.std() == pytest.approx(4, abs=0.15)
