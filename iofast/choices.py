"""Every random choice: a counter-based uniform number, a function of (seed, epoch, position, attempt, name) alone.

There is no state that advances. A sample's numbers do not depend on its batch, on threads, ranks, the container, or on
earlier draws. Exact resume and equal pixels on any number of ranks follow from this.
"""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from iofast.arguments import MAX_SEED, REPLACEMENTS
from iofast.errors import OptionError
from iofast.splitmix import mixed, to_unit

# The counter of one draw: bits 20-59 position, 12-19 attempt, 0-11 lane. Below these limits no two are equal.
POSITIONS = 1 << 40
LANES = 1 << 12  # numbers drawn under one name

_GAMMA_LANES = 1 + 3 * 8  # eight attempts

_LANE_BITS, _POSITION_BITS = 12, 20


@dataclass(frozen=True, eq=False)
class Draw:
    """The random numbers of some samples: row i belongs to `positions[i]` (int64) of `epoch`.

    `attempts` (one int, or int64 per row) counts the replacements already tried for a sample. `samples` (int64) are
    their indices in the dataset, needed for choices that hold in all epochs. `view` names one of several views of an
    image; each view has its own numbers.
    """

    seed: int
    epoch: int
    positions: NDArray[np.int64]
    attempts: NDArray[np.int64] | int = 0
    samples: NDArray[np.int64] | None = None
    view: str = ""
    _counters: NDArray[np.uint64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED or self.epoch < 0:
            raise OptionError(f"seed must be 0 to {MAX_SEED} and epoch 0 or more, found {self.seed} and {self.epoch}")
        positions = _checked("positions", self.positions, POSITIONS)
        attempts = _checked("attempts", self.attempts, REPLACEMENTS + 1)
        counters = (positions << _POSITION_BITS) + (attempts << _LANE_BITS) + 1
        object.__setattr__(self, "_counters", counters.astype(np.uint64).reshape(-1, 1))

    def __len__(self) -> int:
        return len(self._counters)

    def uniform(self, name: str, count: int = 1) -> NDArray[np.float64]:
        """Numbers in [0, 1) for the choice `name`: float64 of shape (N, count), all multiples of 2^-53.

        A smaller `count`, at most `LANES`, gives the first columns of a larger one.
        """
        lanes: NDArray[np.uint64] = np.arange(count, dtype=np.uint64)
        return to_unit(mixed(_key(self.seed, self.epoch, self._named(name)), self._counters + lanes))

    def integers(self, name: str, stop: int) -> NDArray[np.int64]:
        """One whole number in [0, stop) per row for the choice `name`: int64 of shape (N,); `stop` is up to 2^40."""
        return (self.uniform(name)[:, 0] * stop).astype(np.int64)  # (1 - 2^-53) * stop never rounds up to stop

    def of_sample(self, name: str) -> NDArray[np.float64]:
        """A number in [0, 1) for the choice `name` of each sample, the same in every epoch: float64 of shape (N,)."""
        if self.samples is None:
            raise OptionError(f"{name} is a choice for all epochs of a sample: the draw must have samples, found none")
        counters = ((self.samples << _POSITION_BITS) + 1).astype(np.uint64).reshape(-1, 1)
        return to_unit(mixed(_key(self.seed, 0, self._named(f"{name} of the sample")), counters))[:, 0]

    def _named(self, name: str) -> str:
        return f"{name} of view {self.view}" if self.view else name

    def beta(self, name: str, alpha: float) -> NDArray[np.float64]:
        """Numbers of the distribution Beta(alpha, alpha) for the choice `name`: float64 of shape (N,), 0 to 1."""
        if alpha == 1:
            return self.uniform(name)[:, 0]
        u = 1 - self.uniform(name, 2 * _GAMMA_LANES)  # above 0, for the logarithms
        difference = _log_gamma(u[:, _GAMMA_LANES:], alpha) - _log_gamma(u[:, :_GAMMA_LANES], alpha)
        return np.asarray(1 / (1 + np.exp(np.clip(difference, -700, 700))), np.float64)


def generator(seed: int, epoch: int, position: int, attempt: int = 0, name: str = "sample") -> np.random.Generator:
    """A generator for a user's function; its numbers depend on these five arguments alone."""
    key = hashlib.blake2b(f"iofast {name} {seed} {epoch}".encode(), digest_size=16).digest()
    # Philox counts its blocks in the first word, so positions and attempts never share one
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"), counter=[0, 0, position, attempt]))


def _log_gamma(u: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Logarithms of Gamma(alpha) numbers from uniform ones, one per row.

    Marsaglia and Tsang's method for alpha + 1 accepts more than 95 of 100 attempts; one more factor gives alpha.
    """
    d = alpha + 2 / 3
    x = np.sqrt(-2 * np.log(u[:, 1::3])) * np.cos(2 * np.pi * u[:, 2::3])
    v = np.maximum(1 + x / np.sqrt(9 * d), 1e-9) ** 3
    accepted = np.log(u[:, 3::3]) < x * x / 2 + d - d * v + d * np.log(v)
    first = np.arange(len(u)), np.argmax(accepted, axis=1)
    chosen = np.where(accepted[first], v[first], 1.0)  # none of eight: one row in 10^10
    return np.asarray(np.log(d * chosen) + np.log(u[:, 0]) / alpha, np.float64)


def _checked(name: str, values: NDArray[np.int64] | int, stop: int) -> NDArray[np.int64]:
    array = np.asarray(values, np.int64)
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < stop:
        raise OptionError(f"{name} must be 0 to {stop - 1}, found {array.min()} to {array.max()}")
    return array


@lru_cache(maxsize=1024)  # a few names for each view and each epoch in flight
def _key(seed: int, epoch: int, name: str) -> np.uint64:
    digest = hashlib.blake2b(f"iofast choice {seed} {epoch} {name}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))
