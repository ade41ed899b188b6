"""Orders of single samples: sequential, shuffled, repeated, weighted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iofast.arguments import Check, check_fields, checked, integer, optional
from iofast.errors import OptionError, shown
from iofast.order.base import Binding, EpochPositions, Indices, Mode, Order, checksum
from iofast.order.permutation import MAX_SAMPLES, key_word, permuted, uniform

LENGTH: Check = optional(integer(1, MAX_SAMPLES))  # the `length` of a mode


@dataclass(frozen=True)
class Sequential(Mode):
    """Samples 0 … count-1 in every epoch."""

    def _order(self, binding: Binding) -> Order:
        return _Sequential(binding.population.count, binding.population.count, binding.seed)


class _Sequential(Order):
    mode = "sequential"

    def _indices(self, at: EpochPositions) -> Indices:
        return at.positions.copy()


@dataclass(frozen=True)
class Shuffled(Mode):
    """Another permutation of all samples in each epoch; 10^10 samples need no more memory and start-up than ten."""

    def _order(self, binding: Binding) -> Order:
        return _Shuffled(binding.population.count, binding.population.count, binding.seed)


class _Shuffled(Order):
    mode = "shuffled"

    def _indices(self, at: EpochPositions) -> Indices:
        return permuted(self.count, f"iofast order {self.seed} {at.epoch}", at.positions, (at.least, at.most))


@checked(times=integer(1, MAX_SAMPLES))
class Repeated(Mode):
    """Repeated augmentation (Hoffer et al. 2019; DeiT): each sample comes `times` in a row, augmented anew each time.

    Position p holds the sample of position p // times in `order` (default: `Shuffled()`). An epoch is as long as that
    order's, so **it uses only one in `times` of that order's positions**, different ones in each epoch. If `times`
    divides the batch size, a batch holds all repetitions of its samples.
    """

    times: int
    order: Mode | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.order, Mode | None):
            name = type(self.order).__name__
            hint = f": write Repeated({self.times}, Sampled({name}(…)))" if hasattr(self.order, "__iter__") else ""
            raise OptionError(f"Repeated: order must be an order such as Shuffled(), found {shown(self.order)}{hint}")

    def _order(self, binding: Binding) -> Order:
        return _Repeated(self.times, (self.order or Shuffled()).bind(*binding))


class _Repeated(Order):
    mode = "repeated"

    def __init__(self, times: int, inner: Order) -> None:
        super().__init__(inner.count, inner.length, inner.seed)
        self.times, self.inner, self.endless = times, inner, inner.endless

    @property
    def sharded(self) -> tuple[int, int] | None:
        return self.inner.sharded

    def checksum(self, epoch: int) -> str | None:
        return self.inner.checksum(epoch)

    def filling(self, epoch: int, positions: Indices) -> NDArray[np.bool_]:
        return self.inner.filling(epoch, np.asarray(positions, np.int64) // self.times)

    def _indices(self, at: EpochPositions) -> Indices:
        return self.inner.indices(at.epoch, at.positions // self.times)

    def _replacement(self, at: EpochPositions, attempts: Indices) -> Indices:
        one = at.positions // self.times  # the same for all repetitions
        return self.inner.replacement(at.epoch, one, attempts)

    def _options(self) -> dict[str, object]:
        return {"times": self.times, "order": self.inner.describe()}


@dataclass(frozen=True, eq=False)
class Weighted(Mode):
    """Samples drawn with replacement, with probability proportional to `weights` (one per sample, 0 or more).

    `length` is the number of positions per epoch, by default the number of samples. Takes 8 bytes per sample.
    """

    weights: Sequence[float] | NDArray[np.floating]
    length: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, weights=checked_weights, length=LENGTH)

    def _order(self, binding: Binding) -> Order:
        count = binding.population.count
        if len(self.weights) != count:
            raise OptionError(f"weights must be one per sample, {count}, found {len(self.weights)}")
        return _Weighted(np.asarray(self.weights), self.length or count, binding.seed)


class _Weighted(Order):
    mode = "weighted"

    def __init__(self, weights: NDArray[np.float64], length: int, seed: int) -> None:
        super().__init__(len(weights), length, seed)
        self._sums = np.cumsum(shares_of(weights))
        self._checksum = checksum(weights)

    def _indices(self, at: EpochPositions) -> Indices:
        # SplitMix64 instead of the cipher: draws with replacement need no permutation, and this is a tenth of the work
        drawn = uniform(key_word(f"iofast order {self.seed} {at.epoch} weighted"), at.positions)
        drawn *= self._sums[-1]  # stays below it: (1 - 2^-53) * x never rounds up to x
        indices: Indices = np.searchsorted(self._sums, drawn, side="right")  # right of equal sums: never a weight of 0
        return indices

    def _options(self) -> dict[str, object]:
        return {"weights": {"count": self.count, "crc32c": self._checksum}}


def checked_weights(name: str, weights: ArrayLike) -> NDArray[np.float64]:
    """A read-only float64 copy; raises `OptionError` unless it is a row of finite numbers >= 0 that are not all 0."""
    try:
        array = np.asarray(weights, np.float64).copy()  # not `np.array`, which warns for a tensor
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last for a tensor that requires a gradient
        raise OptionError(f"{name} must be numbers, found {shown(weights)}") from None
    if array.ndim != 1 or not array.size:
        raise OptionError(f"{name} must be a row of at least one number, found shape {array.shape}")
    if wrong := np.flatnonzero(~(np.isfinite(array) & (array >= 0)))[:1].tolist():
        raise OptionError(f"{name} must be finite and 0 or more, found {array[wrong[0]]} at {wrong[0]}")
    if not array.any():
        raise OptionError(f"{name} must not all be 0, found {shown(weights)}")
    array.flags.writeable = False
    return array


def shares_of(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """`weights` as parts of the greatest: their sum is finite and at least 1, even for tiny or huge weights."""
    shares: NDArray[np.float64] = weights / weights.max()
    return shares
