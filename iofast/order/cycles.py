"""Orders that deal from several piles: classes in equal parts, datasets in given parts.

Positions are counted through all epochs. Each pile is a permutation that is used up before the next one of the same
samples begins, so that inside a pile every sample comes equally often, whatever the length of an epoch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from iofast.errors import OptionError
from iofast.order.base import Binding, Indices, Mode, Order, Part, Population, checksum
from iofast.order.orders import checked_length, checked_weights, shares_of
from iofast.order.permutation import key_word, permuted_each, permuted_groups, streams

ROUND = 1024  # positions in which the parts of `Mixed` are exact
SAME_PILE = 4  # attempts; then the replacement may come from any pile, for of this one all may be damaged
MAX_TURNS = 1 << 62  # positions of all epochs up to one


class _Piles(Order):
    """Positions come in rounds of `self._round`; a round takes the same number of samples of each pile every time."""

    def __init__(self, sizes: Indices, population: Population, length: int | None, seed: int) -> None:
        super().__init__(population.count, length or population.count, seed)
        self._sizes = sizes
        self._bases = np.cumsum(sizes) - sizes  # of the piles in the row of all samples
        self._round = len(sizes)
        self._slot_key = key_word(f"iofast order {seed} {self.mode} slots")
        self._pile_key = key_word(f"iofast order {seed} {self.mode} piles")

    @abstractmethod
    def _dealt(self, rounds: Indices, slots: Indices) -> tuple[Indices, Indices]:
        """The pile that each slot of a round takes from, and how many samples that pile has given before."""

    def _piles(self, part: Part) -> tuple[Indices, Indices]:
        """The pile of each position, and how many samples it has given before, in this epoch and all earlier ones."""
        if (part.epoch + 1) * self.length > MAX_TURNS:
            epochs = MAX_TURNS // self.length
            raise OptionError(f"epoch must be below {epochs} with {self.length} positions each, found {part.epoch}")
        return self._dealt(*np.divmod(part.positions + part.epoch * self.length, self._round))

    def _row(self, part: Part) -> Indices:
        """Places in the row of all samples, pile after pile."""
        piles, given = self._piles(part)
        sizes = self._sizes[piles]
        cycles, elements = np.divmod(given, sizes)
        words = streams(streams(self._pile_key, piles), cycles)
        rows: Indices = self._bases[piles] + permuted_each(sizes, words, elements)
        return rows

    def _in_the_pile(self, part: Part, attempts: Indices) -> Indices:
        """Samples drawn from the same piles."""
        piles, _ = self._piles(part)
        rows: Indices = self._bases[piles] + self._drawn(part, attempts, self._sizes[piles])
        return rows

    def _replacement(self, part: Part, attempts: Indices) -> Indices:
        indices, anywhere = self._in_the_pile(part, attempts), attempts > SAME_PILE
        if anywhere.any():
            indices = np.where(anywhere, super()._replacement(part, attempts), indices)
        return indices


@dataclass(frozen=True)
class Balanced(Mode):
    """Every class equally often, whatever its size; inside a class every sample equally often.

    Each C consecutive positions (C: classes that have samples) hold every class once, in random order. The samples of a
    class come in a permutation of their own, then in another, and so on through the epochs. `length` is the number of
    positions per epoch; as many as there are samples where it is left out. Takes 8 bytes per sample. Every sample needs
    a label.
    """

    length: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checked_length(self.length))

    def _order(self, given: Binding) -> Order:
        return _Balanced(given.population, self.length, given.seed)


class _Balanced(_Piles):
    mode = "balanced"

    def __init__(self, population: Population, length: int | None, seed: int) -> None:
        if population.labels is None:
            raise OptionError("Balanced needs labels, and this dataset has none")
        labels = np.asarray(population.labels(), np.int64)
        if labels.shape != (population.count,):
            raise OptionError(f"labels must be of shape ({population.count},), found {labels.shape}")
        if unlabelled := np.flatnonzero(labels < 0)[:1].tolist():
            raise OptionError(
                f"Balanced needs a label for every sample, found {labels[unlabelled[0]]} at {unlabelled[0]}"
            )
        sizes = np.unique(labels, return_counts=True)[1]
        super().__init__(sizes, population, length, seed)
        self._samples = np.argsort(labels, kind="stable")
        self._checksum = checksum(labels)

    def _dealt(self, rounds: Indices, slots: Indices) -> tuple[Indices, Indices]:
        return permuted_groups(self._round, self._slot_key, rounds, slots), rounds

    def _indices(self, part: Part) -> Indices:
        indices: Indices = self._samples[self._row(part)]
        return indices

    def _in_the_pile(self, part: Part, attempts: Indices) -> Indices:
        indices: Indices = self._samples[super()._in_the_pile(part, attempts)]
        return indices

    def _options(self) -> dict[str, object]:
        return {"classes": len(self._sizes), "labels": {"count": self.count, "crc32c": self._checksum}}


@dataclass(frozen=True)
class Mixed(Mode):
    """Several datasets, opened as one, in the proportions of `weights` (one per dataset) instead of their sizes.

    Each 1024 consecutive positions hold exactly the same number of samples of each dataset (the weights' parts of 1024,
    rounded by largest remainder), in random order. Each dataset comes in a permutation of its own, then in another, and
    so on through the epochs: the samples of a small one come more often. `length` is the number of positions per epoch;
    as many as there are samples where it is left out.
    """

    weights: Sequence[float]
    length: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple(checked_weights(self.weights).tolist()))
        object.__setattr__(self, "length", checked_length(self.length))
        quotas = self.quotas()
        for weight, quota in zip(self.weights, quotas.tolist(), strict=True):
            if weight and not quota:
                raise OptionError(
                    f"each weight must be 0 or a part of at least 1 in {ROUND}, found {weight} of {sum(self.weights)}"
                )

    def quotas(self) -> Indices:
        """Samples of each dataset in every 1024 positions: int64, one per weight."""
        shares = shares_of(np.array(self.weights))
        parts = shares / math.fsum(shares) * ROUND  # alike on every machine
        quotas: Indices = np.floor(parts).astype(np.int64)
        largest = np.argsort(quotas - parts, kind="stable")  # of equal remainders the first
        quotas[largest[: ROUND - int(quotas.sum())]] += 1
        return quotas

    def _order(self, given: Binding) -> Order:
        parts = given.population.parts
        if len(self.weights) != len(parts):
            mixed = " (indices= leaves one dataset of those that it chooses from)" if len(parts) == 1 else ""
            raise OptionError(f"weights must be one per dataset, {len(parts)}{mixed}, found {len(self.weights)}")
        for number, (weight, part) in enumerate(zip(self.weights, parts, strict=True)):
            if weight and not part:
                raise OptionError(f"a dataset without samples cannot be mixed in: weight {weight} for dataset {number}")
        return _Mixed(self, given.population, given.seed)


class _Mixed(_Piles):
    mode = "mixed"

    def __init__(self, options: Mixed, population: Population, seed: int) -> None:
        super().__init__(np.array(population.parts, np.int64), population, options.length, seed)
        self._quotas = tuple(options.quotas().tolist())
        self._round = ROUND
        self._weights, self._parts = list(options.weights), list(population.parts)

    def _dealt(self, rounds: Indices, slots: Indices) -> tuple[Indices, Indices]:
        piles, given = np.empty_like(slots), np.empty_like(slots)
        by_round = np.argsort(rounds, kind="stable")
        numbers, starts = np.unique(rounds[by_round], return_index=True)
        for number, inside in zip(
            numbers.tolist(), np.split(by_round, starts[1:]), strict=True
        ):  # one or two in a batch
            table, before = _round_table(self._quotas, self._slot_key, number)
            chosen = table[slots[inside]]
            piles[inside] = chosen
            given[inside] = number * np.array(self._quotas)[chosen] + before[slots[inside]]
        return piles, given

    def _indices(self, part: Part) -> Indices:
        return self._row(part)

    def _options(self) -> dict[str, object]:
        return {"weights": self._weights, "parts": self._parts}


@lru_cache(maxsize=16)  # rounds in flight, 16 kB each
def _round_table(quotas: tuple[int, ...], key: np.uint64, number: int) -> tuple[Indices, Indices]:
    """The pile of each slot of a round, and how many samples of that pile come before it in the round."""
    slots = np.arange(ROUND)
    piles = np.repeat(np.arange(len(quotas)), quotas)[permuted_groups(ROUND, key, np.full(ROUND, number), slots)]
    before = np.empty_like(slots)
    by_pile = np.argsort(piles, kind="stable")
    before[by_pile] = slots - np.repeat(np.cumsum(quotas) - quotas, quotas)
    return piles, before
