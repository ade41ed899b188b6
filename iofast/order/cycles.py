"""Orders that deal from several piles: classes in equal parts, datasets in given parts.

Positions are counted through all epochs. A pile is dealt in one permutation after another, so that its samples come
equally often, whatever the length of an epoch.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from iofast.arguments import checked
from iofast.errors import OptionError
from iofast.order.base import Binding, EpochPositions, Indices, Mode, Order, Population, checksum
from iofast.order.orders import LENGTH, checked_weights, shares_of
from iofast.order.permutation import key_word, permuted_each, permuted_groups, streams

ROUND = 1024  # positions in which the parts of `Mixed` are exact
SAME_PILE = 4  # attempts; later replacements come from any pile, as all samples of this one may be damaged
MAX_TURNS = 1 << 62  # positions of all epochs together


class _Piles(Order):
    """Rounds of `turns` positions; every round takes the same number of samples from each pile."""

    def __init__(self, population: Population, sizes: Indices, turns: int, length: int | None, seed: int) -> None:
        super().__init__(population.count, length or population.count, seed)
        self._sizes, self._round = sizes, turns
        self._bases = np.cumsum(sizes) - sizes  # of the piles in the row of all samples
        self._slot_key = key_word(f"iofast order {seed} {self.mode} slots")
        self._pile_key = key_word(f"iofast order {seed} {self.mode} piles")

    @abstractmethod
    def _deal(self, rounds: Indices, slots: Indices) -> tuple[Indices, Indices]:
        """The pile of each slot of a round, and the number of samples dealt from that pile before."""

    def _samples(self, rows: Indices) -> Indices:
        """The samples at places of the row of all samples, pile after pile."""
        return rows

    def _piles(self, at: EpochPositions) -> tuple[Indices, Indices]:
        """The pile of each position, and the number of samples dealt from it before, since the first epoch."""
        if (at.epoch + 1) * self.length > MAX_TURNS:
            epochs = MAX_TURNS // self.length
            raise OptionError(f"epoch must be below {epochs} with {self.length} positions each, found {at.epoch}")
        return self._deal(*np.divmod(at.positions + at.epoch * self.length, self._round))

    def _indices(self, at: EpochPositions) -> Indices:
        piles, before = self._piles(at)
        sizes = self._sizes[piles]
        cycles, elements = np.divmod(before, sizes)
        words = streams(streams(self._pile_key, piles), cycles)
        return self._samples(self._bases[piles] + permuted_each(sizes, words, elements))

    def _replacement(self, at: EpochPositions, attempts: Indices) -> Indices:
        piles, _ = self._piles(at)
        indices = self._samples(self._bases[piles] + self._drawn(at, attempts, self._sizes[piles]))
        anywhere = attempts > SAME_PILE
        return np.where(anywhere, super()._replacement(at, attempts), indices) if anywhere.any() else indices


@checked(length=LENGTH)
class Balanced(Mode):
    """Every class equally often, whatever its size; inside a class every sample equally often.

    Each C consecutive positions (C: classes that have samples) hold every class once, in random order. The samples of a
    class come in one permutation after another, through all epochs. `length` is the number of positions per epoch, by
    default the number of samples. Takes 8 bytes per sample. Every sample needs a label.
    """

    length: int | None = None

    def _order(self, binding: Binding) -> Order:
        return _Balanced(binding.population, self.length, binding.seed)


class _Balanced(_Piles):
    mode = "balanced"

    def __init__(self, population: Population, length: int | None, seed: int) -> None:
        assert population.labels is not None  # a dataset has them
        labels = np.asarray(population.labels(), np.int64)
        if unlabelled := np.flatnonzero(labels < 0)[:1].tolist():
            found = f"found {labels[unlabelled[0]]} at {unlabelled[0]}"
            raise OptionError(f"Balanced needs a label for every sample, {found}")
        sizes = np.unique(labels, return_counts=True)[1]
        super().__init__(population, sizes, len(sizes), length, seed)
        self._by_class = np.argsort(labels, kind="stable")
        self._checksum = checksum(labels)

    def _deal(self, rounds: Indices, slots: Indices) -> tuple[Indices, Indices]:
        return permuted_groups(self._round, self._slot_key, rounds, slots), rounds

    def _samples(self, rows: Indices) -> Indices:
        return np.asarray(self._by_class[rows])

    def _options(self) -> dict[str, object]:
        return {"classes": len(self._sizes), "labels": {"count": self.count, "crc32c": self._checksum}}


@checked(weights=checked_weights, length=LENGTH)
class Mixed(Mode):
    """Several datasets, opened as one, in the proportions of `weights` (one per dataset) instead of their sizes.

    Each 1024 consecutive positions hold exactly the same number of samples of each dataset (the weights' parts of 1024,
    rounded by largest remainder), in random order. Each dataset comes in one permutation after another, through all
    epochs. `length` is the number of positions per epoch, by default the number of samples.
    """

    weights: Sequence[float]
    length: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple(np.asarray(self.weights).tolist()))
        for weight, quota in zip(self.weights, self.quotas().tolist(), strict=True):
            if weight and not quota:
                found = f"found {weight} of {sum(self.weights)}"
                raise OptionError(f"Mixed: each weight must be 0 or a part of at least 1 in {ROUND}, {found}")

    def quotas(self) -> Indices:
        """Samples of each dataset in every 1024 positions: int64, one per weight."""
        shares = shares_of(np.array(self.weights))
        parts = shares / math.fsum(shares) * ROUND  # fsum: equal on every machine
        quotas: Indices = np.floor(parts).astype(np.int64)
        largest = np.argsort(quotas - parts, kind="stable")  # the first of equal remainders
        quotas[largest[: ROUND - int(quotas.sum())]] += 1
        return quotas

    def _order(self, binding: Binding) -> Order:
        parts = binding.population.parts
        if len(self.weights) != len(parts):
            mixed = " (indices= makes one dataset of several)" if len(parts) == 1 else ""
            raise OptionError(f"weights must be one per dataset, {len(parts)}{mixed}, found {len(self.weights)}")
        for number, (weight, count) in enumerate(zip(self.weights, parts, strict=True)):
            if weight and not count:
                raise OptionError(f"weights must be 0 for empty datasets, found weight {weight} for dataset {number}")
        return _Mixed(self, binding.population, binding.seed)


class _Mixed(_Piles):
    mode = "mixed"

    def __init__(self, options: Mixed, population: Population, seed: int) -> None:
        super().__init__(population, np.array(population.parts, np.int64), ROUND, options.length, seed)
        self._quotas = tuple(options.quotas().tolist())
        self._weights, self._parts = list(options.weights), list(population.parts)

    def _deal(self, rounds: Indices, slots: Indices) -> tuple[Indices, Indices]:
        piles, before = np.empty_like(slots), np.empty_like(slots)
        by_round = np.argsort(rounds, kind="stable")
        numbers, starts = np.unique(rounds[by_round], return_index=True)  # one or two in a batch
        for number, inside in zip(numbers.tolist(), np.split(by_round, starts[1:]), strict=True):
            pile_of_slot, before_in_round = _round_table(self._quotas, self._slot_key, number)
            piles[inside] = pile_of_slot[slots[inside]]
            before[inside] = number * np.array(self._quotas)[piles[inside]] + before_in_round[slots[inside]]
        return piles, before

    def _options(self) -> dict[str, object]:
        return {"weights": self._weights, "parts": self._parts}


@lru_cache(maxsize=16)  # rounds in flight, 16 kB each
def _round_table(quotas: tuple[int, ...], key: np.uint64, number: int) -> tuple[Indices, Indices]:
    """The pile of each slot of a round, and the number of earlier samples of that pile in the round."""
    slots = np.arange(ROUND)
    piles = np.repeat(np.arange(len(quotas)), quotas)[permuted_groups(ROUND, key, np.full(ROUND, number), slots)]
    before = np.empty_like(slots)
    by_pile = np.argsort(piles, kind="stable")
    before[by_pile] = slots - np.repeat(np.cumsum(quotas) - quotas, quotas)
    return piles, before
