"""ResizeToBucket: the size an image gets, and the part that is kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from iofast import transforms as T
from iofast.choices import Draw

SIZES = ((32, 32), (24, 42), (42, 24))  # height, width
SIDES = st.integers(1, 65_500)


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=8), st.booleans())
def test_boxes(images: list[tuple[int, int]], random: bool) -> None:
    widths, heights = np.array(images).T
    pipeline = T.compile([T.ResizeToBucket(SIZES, random=random)])
    boxes, flips = pipeline.plan(Draw(5, 1, np.arange(len(images))), widths, heights)
    assert (pipeline.size, pipeline.evaluation, flips.any()) == (None, not random, False)
    for (width, height), (x0, y0, x1, y1, wide, high, x, y) in zip(images, boxes.tolist(), strict=True):
        distance = [abs(np.log(width / height) - np.log(w / h)) for h, w in SIZES]
        assert distance[SIZES.index((high, wide))] <= min(distance) + 1e-12
        assert 0 <= x0 < x1 <= width
        assert 0 <= y0 < y1 <= height
        assert (x, y) == (0, 0)
        assert x1 - x0 == width or y1 - y0 == height  # as large as there is room
        # to the nearest pixel the aspect ratio of the size, at least 1
        assert x1 - x0 == width or abs((x1 - x0) - height * wide / high) <= max(0.5, 1 - height * wide / high)
        assert y1 - y0 == height or abs((y1 - y0) - width * high / wide) <= max(0.5, 1 - width * high / wide)
        if not random:
            assert abs(x0 - (width - x1)) <= 1
            assert abs(y0 - (height - y1)) <= 1


def test_any_place_is_equally_likely() -> None:
    draw = Draw(0, 0, np.arange(4000))
    boxes, _ = T.compile([T.ResizeToBucket([(8, 8)], random=True)]).plan(draw, np.full(4000, 12), np.full(4000, 8))
    assert np.unique(boxes[:, 0]).tolist() == [0, 1, 2, 3, 4]
    assert np.bincount(boxes[:, 0]).min() > 700
    assert not boxes[:, 1].any()
