"""Arrays and strings of a listing."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iofast.source import arrays
from iofast.source.arrays import Strings, StringsWriter, stable_order


@pytest.fixture(autouse=True, params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "large":
        monkeypatch.setattr(arrays, "_STEP_BYTES", 8)
        monkeypatch.setattr(arrays, "STEP", 3)


@given(st.lists(st.binary(max_size=9), max_size=30))
def test_strings_come_back(strings: list[bytes]) -> None:
    gathered = Strings.gather(strings)
    assert list(gathered) == strings
    assert [gathered[row] for row in range(len(strings))] == strings
    assert gathered.of(slice(len(strings) // 2, len(strings))) == strings[len(strings) // 2 :]
    assert [string for rows in gathered.steps() for string in gathered.of(rows)] == strings
    assert list(pickle.loads(pickle.dumps(gathered))) == strings
    assert bytes(gathered.blob) == b"".join(string + b"\0" for string in strings)


@given(st.lists(st.one_of(st.binary(max_size=9), st.lists(st.binary(max_size=9), max_size=5)), max_size=9))
def test_strings_one_by_one_and_many_at_once(given: list[bytes | list[bytes]]) -> None:
    writer, expected = StringsWriter(), []
    for each in given:
        if isinstance(each, bytes):
            writer.add(each)
            expected.append(each)
        else:
            ends = np.cumsum([len(string) + 1 for string in each]).astype(np.uint64)
            writer.extend(b"".join(string + b"\0" for string in each), ends)
            expected += each
    assert list(writer.finish()) == expected


@given(st.lists(st.integers(0, 4), max_size=30))
def test_order(ranks: list[int]) -> None:
    counts, order = stable_order(np.array(ranks, np.int32), 5)
    assert counts == [ranks.count(rank) for rank in range(5)]
    assert (order is None) == (ranks == sorted(ranks))
    if order is not None:
        assert order.tolist() == np.argsort(ranks, kind="stable").tolist()


def test_steps_have_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    strings = Strings.gather([b"", b"ab", b"x" * 30, b"", b"", b""])
    monkeypatch.setattr(arrays, "_STEP_BYTES", 5)
    monkeypatch.setattr(arrays, "STEP", 3)
    assert [(rows.start, rows.stop) for rows in strings.steps()] == [(0, 2), (2, 3), (3, 6)]
