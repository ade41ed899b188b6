"""What all orders share: the mode a user writes, the population it is bound to, and the resulting order."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from iofast.arguments import REPLACEMENTS, check_integer
from iofast.errors import OptionError
from iofast.order.permutation import MAX_SAMPLES, key_word, uniform

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Population:
    """The samples of an order: indices 0 … count-1 of a dataset.

    `labels()` gives int64 of shape (count,), -1 for no label. `sizes()` gives upright widths and heights, int32 of
    shape (count,) each. Orders that need them call them once. `parts` are the sample counts of the datasets that were
    joined into this one, in order.
    """

    count: int
    labels: Callable[[], NDArray[np.int64]] | None = None
    sizes: Callable[[], tuple[NDArray[np.int32], NDArray[np.int32]]] | None = None
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_integer("count (samples)", self.count, 1, MAX_SAMPLES)
        if not self.parts:
            object.__setattr__(self, "parts", (self.count,))


class Binding(NamedTuple):
    """What a mode is bound to."""

    population: Population
    seed: int
    global_batch: int


class EpochPositions(NamedTuple):
    """Some positions of an epoch, checked: int64 of shape (N,), N > 0, from `least` to `most`."""

    epoch: int
    positions: Indices
    least: int
    most: int


class Order(ABC):
    """The sample at each position of each epoch; `Mode.bind` makes it.

    Every answer is a function of (seed, epoch, position), so any rank, thread or resumed run computes any part of any
    epoch. `count` is the number of samples, `length` the number of positions in an epoch. An `endless` epoch has no
    end, and `length` is the greatest number of positions that can be counted.
    """

    mode: str  # the name in `describe`
    endless = False

    def __init__(self, count: int, length: int, seed: int) -> None:
        check_integer("length (positions per epoch)", length, 1, MAX_SAMPLES)
        self.count, self.length, self.seed = count, length, seed

    def indices(self, epoch: int, positions: Indices) -> Indices:
        """The indices (int64, in `positions`' shape, each 0 … count-1) of the samples at `positions` of `epoch`.

        Raises `OptionError` for an epoch below 0 and for positions outside 0 … length-1.
        """
        positions = np.asarray(positions, np.int64)
        at = self._checked(epoch, positions)
        return positions.copy() if at is None else self._indices(at).reshape(positions.shape)

    def replacement(self, epoch: int, positions: Indices, attempts: Indices | int) -> Indices:
        """The indices (int64) of samples to use instead of undecodable ones at `positions` (any shape).

        `attempts` (one, or one per position, 1 … 255) counts the replacements of a sample. The replacement is the
        sample at a random position of the epoch; orders that group samples choose it from the same group.
        """
        positions = np.asarray(positions, np.int64)
        at = self._checked(epoch, positions)
        if at is None:
            return positions.copy()
        counts = np.broadcast_to(np.asarray(attempts, np.int64), positions.shape).ravel()
        if not 1 <= int(counts.min()) <= int(counts.max()) <= REPLACEMENTS:
            raise OptionError(f"attempts must be 1 to {REPLACEMENTS}, found {counts.min()} to {counts.max()}")
        return self._replacement(at, counts).reshape(positions.shape)

    def filling(self, epoch: int, positions: Indices) -> NDArray[np.bool_]:  # noqa: ARG002 (most orders have none)
        """Whether each of `positions` only fills up a batch, with a sample of another position: bool, their shape."""
        return np.zeros(np.shape(positions), np.bool_)

    def describe(self) -> dict[str, object]:
        """The mode and all its options, for JSON. Equal descriptions and seeds mean equal orders."""
        length = None if self.endless else self.length
        return {"mode": self.mode, "count": self.count, "length": length, **self._options()}

    @property
    def sharded(self) -> tuple[int, int] | None:
        """(rank, number of ranks) if the order holds only one rank's share: it is not dealt to ranks again."""
        return None

    def checksum(self, epoch: int) -> str | None:  # noqa: ARG002 (only samplers need it)
        """CRC32C of an epoch's indices, as eight hexadecimal digits, if `describe` does not determine them; else None.

        The state holds it: a resume that computes another one has a sampler that does not repeat itself.
        """
        return None

    def __repr__(self) -> str:
        return f"<order {self.describe()}, seed {self.seed}>"

    @abstractmethod
    def _indices(self, at: EpochPositions) -> Indices:
        """`indices` for checked positions."""

    def _options(self) -> dict[str, object]:
        return {}

    def _replacement(self, at: EpochPositions, attempts: Indices) -> Indices:
        return self.indices(at.epoch, self._drawn(at, attempts, self.length))

    def _drawn(self, at: EpochPositions, attempts: Indices, stops: Indices | int) -> Indices:
        """A random whole number in [0, stop) for each position and attempt."""
        key = key_word(f"iofast order {self.seed} {at.epoch} replacement")
        drawn = uniform(key, at.positions + attempts * MAX_SAMPLES) * stops
        return drawn.astype(np.int64)  # (1 - 2^-53) * stop never rounds up to stop

    def _checked(self, epoch: int, positions: Indices) -> EpochPositions | None:
        """The positions, checked; None if there are none."""
        least, most = (int(positions.min()), int(positions.max())) if positions.size else (0, 0)
        if epoch < 0:
            raise OptionError(f"epoch must be 0 or more, found {epoch}")
        if not 0 <= least <= most < self.length:
            raise OptionError(f"positions must be 0 to {self.length - 1}, found {least} to {most}")
        return EpochPositions(epoch, positions.ravel(), least, most) if positions.size else None


class Mode(ABC):
    """How samples are ordered, as a user writes it. `bind` makes the `Order` of a dataset."""

    def bind(self, population: Population, seed: int = 0, global_batch: int = 1) -> Order:
        """The order of `population` under `seed` (0 … 2^64-1).

        `global_batch` is the number of consecutive positions in a batch of all ranks together; only `Buckets`,
        `Grouped` and endless samplers depend on it. Raises `OptionError` if the mode does not fit the population.
        """
        return self._order(Binding(population, seed, global_batch))

    @abstractmethod
    def _order(self, binding: Binding) -> Order:
        """See `bind`."""


def checksum(values: NDArray[np.generic]) -> str:
    """CRC32C of an array's little-endian bytes, as eight hexadecimal digits."""
    stored = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return f"{google_crc32c.value(stored.tobytes()):08x}"
