"""Arrays and strings of a listing."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iofast.source import arrays
from iofast.source.arrays import Strings, stable_order


@pytest.mark.parametrize("step", [3, 1 << 16])
@given(strings=st.lists(st.binary(max_size=9), max_size=30))
def test_strings_come_back(step: int, strings: list[bytes]) -> None:
    gathered = Strings.gather(strings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "STEP", step)
        assert list(gathered) == strings
        assert list(pickle.loads(pickle.dumps(gathered))) == strings
    assert [gathered[row] for row in range(len(strings))] == strings
    assert bytes(gathered.blob) == b"".join(string + b"\0" for string in strings)


@given(st.lists(st.integers(0, 4), max_size=30))
def test_order(ranks: list[int]) -> None:
    counts, order = stable_order(np.array(ranks, np.int32), 5)
    assert counts == [ranks.count(rank) for rank in range(5)]
    assert (order is None) == (ranks == sorted(ranks))
    if order is not None:
        assert order.tolist() == np.argsort(ranks, kind="stable").tolist()
