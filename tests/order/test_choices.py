"""Choices are uniform, independent, functions of names alone; epochs are no other than random permutations."""

import hashlib
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iofast.arguments import MAX_SEED, REPLACEMENTS
from iofast.choices import LANES, POSITIONS, Draw
from iofast.errors import OptionError
from iofast.order import Blocks, Grouped, Mixed, Mode, Population, Repeated, Sequential, Shuffled
from iofast.order.permutation import key_word, permuted_each, streams
from tools.torture import permutations as torture
from tools.torture.permutations import surprise, uniformity

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


def test_one_attempt_for_all_or_one_for_each_row() -> None:
    positions = np.arange(4)
    rows = Draw(0, 0, positions, np.array([2, 0, 1, 2])).uniform("a", 3)
    for row, attempt in enumerate((2, 0, 1, 2)):
        assert (rows[row] == Draw(0, 0, positions[row : row + 1], attempt).uniform("a", 3)).all()
    assert len(Draw(0, 0, positions)) == 4
    assert Draw(0, 0, np.zeros(0, np.int64)).uniform("a", 3).shape == (0, 3)


def test_lanes_names_epochs_seeds_and_attempts_are_uniform_and_independent() -> None:
    """All seeds are fixed: a failure is a change of the code, not bad luck."""
    n = 100_000
    positions, base = np.arange(n), Draw(5, 0, np.arange(n)).uniform("a", 2)
    others = {
        "fine bits": base[:, 0] * 2**45 % 1,
        "lane": base[:, 1],
        "name": Draw(5, 0, positions).uniform("b")[:, 0],
        "epoch": Draw(5, 1, positions).uniform("a")[:, 0],
        "seed": Draw(6, 0, positions).uniform("a")[:, 0],
        "attempt": Draw(5, 0, positions, 1).uniform("a")[:, 0],
        **{f"lag {lag}": np.roll(base[:, 0], lag) for lag in (1, 2, 64, 256)},
    }
    for name, other in others.items():
        pairs = np.floor(base[:, 0] * 20) * 20 + np.floor(other * 20)
        assert surprise(np.bincount(pairs.astype(int), minlength=400), n / 400, 399) < 4.5, name


@given(seed=SEEDS, position=POSITION, stop=st.integers(1, POSITIONS))
def test_integers(seed: int, position: int, stop: int) -> None:
    value = Draw(seed, 0, np.array([position])).integers("replacement", stop)
    assert (value.dtype, value.shape) == (np.int64, (1,))
    assert 0 <= value[0] < stop
    drawn = Draw(seed, 0, np.arange(7000)).integers("replacement", 7)
    assert surprise(np.bincount(drawn, minlength=7), 1000, 6) < 5


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


KEYS = 2000


@pytest.mark.parametrize("n", [3, 5])
def test_small_sets_see_every_permutation_equally_often(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torture, "KEYS", 4000)
    assert max(abs(value) for _, value in torture.whole_permutations(n)) < 4


@pytest.mark.parametrize("n", [5, 4096, 4097])
@pytest.mark.parametrize("mode", [Shuffled(), Blocks(), Blocks(7, 5), Grouped(1), Grouped(1, Blocks(7, 5))], ids=str)
def test_a_position_sees_every_sample_equally_often(n: int, mode: Mode) -> None:
    positions = np.array([0, 1, n // 2, n - 1])
    samples = np.array([mode.bind(Population(n), seed).indices(seed % 7, positions) for seed in range(700)])
    assert max(abs(uniformity(column, n)) for column in samples.T) < 4


@pytest.mark.parametrize("n", [2, 5, 64, 65, 5000])
def test_keyed_permutations_of_their_own_are_random(n: int) -> None:
    """As classes of a balanced order have them: one position of each of many permutations, and pairs of positions."""
    words = streams(key_word(f"quality {n}"), np.arange(10 * KEYS))
    start = permuted_each(n, words, np.zeros(10 * KEYS, np.int64))
    for place in {1, min(math.isqrt(n - 1) + 1, n - 1), n - 1}:
        other = permuted_each(n, words, np.full(10 * KEYS, place))
        assert abs(uniformity(other, n)) < 4
        assert (other != start).all()
        assert n == 2 or abs(uniformity((other - start) % n - 1, n - 1)) < 4


@pytest.mark.parametrize("n", [1000, 4096, 4097])
def test_neighbours_and_epochs_are_independent(n: int) -> None:
    values = dict(test for seed in range(2) for test in torture.in_an_epoch(n, seed))
    assert len(values) >= 12
    assert max(map(abs, values.values())) < 4.5


HUGE = [Sequential(), Shuffled(), Blocks(), Repeated(3), Mixed([0.5, 0.5]), Grouped(1), Grouped(1, Blocks())]


@pytest.mark.parametrize("mode", HUGE, ids=str)
def test_ten_billion_samples_take_no_more_memory_than_ten(mode: Mode) -> None:
    def start(n: int) -> tuple[int, int]:
        """Bytes that the order holds, and the peak with the first batches."""
        tracemalloc.start()
        order = mode.bind(Population(n, parts=(n // 2, n // 2) if isinstance(mode, Mixed) else ()), seed=1)
        held = tracemalloc.get_traced_memory()[0]
        last = np.arange(n - 256 if n > 256 else 0, n)
        order.indices(0, np.arange(10))
        order.indices(0, last)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held, peak

    start(10)  # what Python keeps of the first call
    (little, _), (much, peak) = start(10), start(10**10)
    assert abs(much - little) <= 64 << 10  # longer integers, other threads; a table would be gigabytes
    assert peak < 640 << 10
