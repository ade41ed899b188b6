"""The number of samples in a batch: by a search, and by the place in the batch before."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iofast.meter import LoaderInfo, StallClock
from iofast.meter.loop import _Batches, samples

BATCHES: tuple[tuple[object, int | None], ...] = (
    (torch.zeros(5, 2), 5),
    ((torch.zeros(5, 2), torch.zeros(7)), 5),
    ([torch.zeros(3, 2), torch.zeros(7)], 3),
    ([np.zeros((4, 3, 2, 2)), np.zeros(4)], 4),
    ({"path": "x", "image": torch.zeros(6, 1)}, 6),
    ({"image": torch.zeros(9, 1), "path": "x"}, 9),
    ((3, "text", None, {"deep": [torch.zeros(2)]}), 2),
    (([torch.zeros(3, 9, 9), torch.zeros(3, 5, 5)], torch.zeros(2)), 2),
    (([], torch.zeros(8)), 8),
    (torch.tensor(1.0), None),
    ((torch.tensor(1.0), torch.zeros(4)), 4),
    ((torch.zeros(1), torch.zeros(4)), 1),
    ("text", None),
    (b"bytes", None),
    (None, None),
    ([], None),
    ((), None),
    ({}, None),
    ({"other": torch.zeros(3, 2)}, 3),
    ([[[[[[torch.zeros(3)]]]]]], None),
    (torch.zeros(0, 3), 0),
)


@pytest.mark.parametrize(("batch", "expected"), BATCHES)
def test_samples_of_a_batch(batch: object, expected: int | None) -> None:
    assert samples(batch) == expected


@given(st.lists(st.sampled_from(range(len(BATCHES))), min_size=1, max_size=12))
def test_any_sequence_of_batches(numbers: list[int]) -> None:
    """Each batch comes twice, so that the remembered place is right, and then wrong."""
    pairs = [BATCHES[number] for number in numbers for _ in range(2)]
    clock = StallClock(LoaderInfo("mixed"), device="cpu")
    counts: list[int | None] = []
    batches = _Batches([batch for batch, _ in pairs], clock)
    batches._pass = SimpleNamespace(got=counts.append, waiting=lambda: None, left=lambda: None)  # type: ignore[assignment]
    assert all(found is batch for found, (batch, _) in zip(batches, pairs, strict=True))
    assert counts == [expected for _, expected in pairs]
