"""Choices are uniform, independent, and functions of (seed, epoch, position, attempt, name) alone."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from iofast.arguments import MAX_SEED, REPLACEMENTS
from iofast.choices import LANES, POSITIONS, Draw
from iofast.errors import OptionError

SEEDS = st.integers(0, MAX_SEED)
POSITION = st.integers(0, POSITIONS - 1)
WORD = (1 << 64) - 1


def one(seed: int, epoch: int, position: int, attempt: int, name: str, lane: int) -> float:
    """The definition, in Python's integers."""
    digest = hashlib.blake2b(f"iofast choice {seed} {epoch} {name}".encode(), digest_size=8).digest()
    counter = position << 20 | attempt << 12 | lane
    z = (int.from_bytes(digest, "little") + (counter + 1) * 0x9E3779B97F4A7C15) & WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return ((z ^ z >> 31) >> 11) / 2**53


def surprise(values: NDArray[np.float64], cells: int = 100) -> float:
    """Standard deviations by which chi-square of `values` over equal cells lies above its mean."""
    counts = np.bincount((values.ravel() * cells).astype(int), minlength=cells)
    expected = values.size / cells
    return float((((counts - expected) ** 2 / expected).sum() - (cells - 1)) / np.sqrt(2 * (cells - 1)))


@given(
    seed=SEEDS,
    epoch=st.integers(0, 1 << 40),
    positions=st.lists(POSITION, min_size=1, max_size=5),
    attempt=st.integers(0, REPLACEMENTS),
    name=st.sampled_from(["", "crop", "flip", "horizontal flip 2", "größe ∞"]),
    count=st.integers(1, 9),
)
def test_against_the_definition(
    seed: int, epoch: int, positions: list[int], attempt: int, name: str, count: int
) -> None:
    values = Draw(seed, epoch, np.array(positions), attempt).uniform(name, count)
    assert values.dtype == np.float64
    assert values.tolist() == [[one(seed, epoch, p, attempt, name, lane) for lane in range(count)] for p in positions]
    assert ((values >= 0) & (values < 1)).all()
    last = Draw(seed, epoch, np.array(positions[:1]), attempt).uniform(name, LANES)[0, -1]
    assert last == one(seed, epoch, positions[0], attempt, name, LANES - 1)


def test_the_numbers_never_change_between_versions() -> None:
    draw = Draw(7, 3, np.array([0, 1, 1 << 39]), np.array([0, 0, 2]))
    assert draw.uniform("crop", 2).tolist() == [
        [0.23967071130017426, 0.158008234454042],
        [0.8290176785570753, 0.8163567328890567],
        [0.9670982469914959, 0.12194743964024735],
    ]


def test_one_attempt_for_all_or_one_for_each_row() -> None:
    positions = np.arange(4)
    rows = Draw(0, 0, positions, np.array([2, 0, 1, 2])).uniform("a", 3)
    for row, attempt in enumerate((2, 0, 1, 2)):
        assert (rows[row] == Draw(0, 0, positions[row : row + 1], attempt).uniform("a", 3)).all()
    assert len(Draw(0, 0, positions)) == 4
    assert Draw(0, 0, np.zeros(0, np.int64)).uniform("a", 3).shape == (0, 3)


class TestQuality:
    """All seeds are fixed: a failure is a change of the code, not bad luck."""

    def test_uniform_over_positions_lanes_epochs_seeds_and_attempts(self) -> None:
        n = 100_000
        assert surprise(Draw(0, 0, np.arange(n)).uniform("a")) < 4
        assert surprise(Draw(0, 0, np.arange(n) << 20).uniform("a")) < 4  # low bits all zero
        assert surprise(Draw(0, 0, np.arange(50)).uniform("a", LANES)) < 4
        some = np.arange(10)
        assert surprise(np.array([Draw(0, e, some).uniform("a") for e in range(5000)])) < 4
        assert surprise(np.array([Draw(s, 0, some).uniform("a") for s in range(5000)])) < 4
        assert surprise(np.array([Draw(0, 0, np.arange(500), a).uniform("a") for a in range(REPLACEMENTS + 1)])) < 4

    def test_fine_bits_are_uniform_too(self) -> None:
        values = Draw(3, 1, np.arange(100_000)).uniform("a")
        assert surprise(values * 2**20 % 1) < 4
        assert surprise(values * 2**45 % 1, 64) < 4  # the last 8 bits: 256 values, 4 in each of 64 cells

    @pytest.mark.parametrize("lag", [1, 2, 64, 256])
    def test_no_serial_correlation(self, lag: int) -> None:
        values = Draw(5, 0, np.arange(100_000)).uniform("a")[:, 0]
        self.assert_independent(values[:-lag], values[lag:])

    def test_names_epochs_seeds_lanes_and_attempts_are_independent(self) -> None:
        positions = np.arange(100_000)
        base = Draw(5, 0, positions).uniform("a", 2)
        others = (
            base[:, 1],
            Draw(5, 0, positions).uniform("b")[:, 0],
            Draw(5, 1, positions).uniform("a")[:, 0],
            Draw(6, 0, positions).uniform("a")[:, 0],
            Draw(5, 0, positions, 1).uniform("a")[:, 0],
        )
        for other in others:
            self.assert_independent(base[:, 0], other)

    @staticmethod
    def assert_independent(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
        assert abs(np.corrcoef(a, b)[0, 1]) < 4.5 / np.sqrt(len(a))
        cells = (np.floor(a * 20) * 20 + np.floor(b * 20) + 0.5) / 400
        assert surprise(cells, 400) < 4.5


class TestIntegers:
    @given(seed=SEEDS, position=POSITION, stop=st.integers(1, POSITIONS))
    def test_in_range(self, seed: int, position: int, stop: int) -> None:
        value = Draw(seed, 0, np.array([position])).integers("replacement", stop)
        assert value.dtype == np.int64
        assert value.shape == (1,)
        assert 0 <= value[0] < stop

    def test_uniform(self) -> None:
        values = Draw(0, 0, np.arange(70_000)).integers("replacement", 7)
        assert surprise((values + 0.5) / 7, 7) < 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Draw(-1, 0, np.arange(2)), "seed"),
        (lambda: Draw(MAX_SEED + 1, 0, np.arange(2)), "seed"),
        (lambda: Draw(0, -1, np.arange(2)), "epoch"),
        (lambda: Draw(0, 0, np.array([POSITIONS])), "positions"),
        (lambda: Draw(0, 0, np.array([-1])), "positions"),
        (lambda: Draw(0, 0, np.arange(2), REPLACEMENTS + 1), "attempts"),
        (lambda: Draw(0, 0, np.arange(2), np.array([0, -1])), "attempts"),
    ],
)
def test_impossible_options_are_refused(make: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()  # type: ignore[operator]
