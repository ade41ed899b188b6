"""Orders that deal from several piles: classes in equal parts, datasets in given parts.

Positions are counted through all epochs. Each pile is a permutation that is used up before the next one of the same
samples begins, so that inside a pile every sample comes equally often, whatever the length of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iofast.errors import OptionError
from iofast.order.base import Given, Indices, Mode, Order, Part, Population, checksum
from iofast.order.orders import checked_length, checked_weights
from iofast.order.permutation import key_word, permuted_each, permuted_groups, streams

ROUND = 1024  # positions in which the parts of `Mixed` are exact
MAX_TURNS = 1 << 62  # positions of all epochs up to one


class _Piles(Order):
    """Positions come in rounds; a round takes quota[i] samples of pile i, in a random order of the round's own."""

    def __init__(self, quotas: Indices, sizes: Indices, population: Population, length: int | None, seed: int) -> None:
        super().__init__(population.count, length or population.count, seed)
        self._sizes = sizes
        self._quotas = quotas
        self._ends = np.cumsum(quotas)  # of the piles' slots in a round
        self._round = int(self._ends[-1])
        self._alike = bool((quotas == 1).all())
        self._bases = np.cumsum(sizes) - sizes  # of the piles in the row of all samples
        self._slot_key = key_word(f"iofast order {seed} {self.mode} slots")
        self._pile_key = key_word(f"iofast order {seed} {self.mode} piles")

    def _drawn_from(self, part: Part) -> tuple[Indices, Indices]:
        """The pile of each position, and the place among the pile's samples."""
        rounds, slots = np.divmod(self._turns(part), self._round)
        slots = permuted_groups(self._round, self._slot_key, rounds, slots)
        if self._alike:
            piles, occurrences = slots, rounds
        else:
            piles = np.searchsorted(self._ends, slots, side="right")
            quotas = self._quotas[piles]
            occurrences = rounds * quotas + slots - (self._ends[piles] - quotas)
        sizes = self._sizes[piles]
        cycles, elements = np.divmod(occurrences, sizes)
        words = streams(streams(self._pile_key, piles), cycles)
        return piles, permuted_each(sizes, words, elements)

    def _turns(self, part: Part) -> Indices:
        """Positions counted through all epochs."""
        if (part.epoch + 1) * self.length > MAX_TURNS:
            epochs = MAX_TURNS // self.length
            raise OptionError(f"epoch must be below {epochs} with {self.length} positions each, found {part.epoch}")
        return part.positions + part.epoch * self.length

    def _row(self, part: Part) -> Indices:
        """Places in the row of all samples, pile after pile."""
        piles, elements = self._drawn_from(part)
        return self._bases[piles] + elements

    def _row_replacement(self, part: Part, attempts: Indices) -> Indices:
        """Places of samples drawn from the same piles."""
        piles, _ = self._drawn_from(part)
        rows: Indices = self._bases[piles] + self._drawn(part, attempts, self._sizes[piles])
        return rows


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

    def _order(self, given: Given) -> Order:
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
        classes, sizes = np.unique(labels, return_counts=True)
        super().__init__(np.ones_like(classes), sizes, population, length, seed)
        self._samples = np.argsort(labels, kind="stable")
        self._checksum = checksum(labels)

    def _indices(self, part: Part) -> Indices:
        indices: Indices = self._samples[self._row(part)]
        return indices

    def _replacement(self, part: Part, attempts: Indices) -> Indices:
        indices: Indices = self._samples[self._row_replacement(part, attempts)]
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
        parts = np.array(self.weights) / np.sum(self.weights) * ROUND
        quotas: Indices = np.floor(parts).astype(np.int64)
        largest = np.argsort(quotas - parts, kind="stable")  # of equal remainders the first
        quotas[largest[: ROUND - int(quotas.sum())]] += 1
        return quotas

    def _order(self, given: Given) -> Order:
        parts = given.population.parts
        if len(self.weights) != len(parts):
            raise OptionError(f"weights must be one per dataset, {len(parts)}, found {len(self.weights)}")
        for number, (weight, part) in enumerate(zip(self.weights, parts, strict=True)):
            if weight and not part:
                raise OptionError(f"a dataset without samples cannot be mixed in: weight {weight} for dataset {number}")
        return _Mixed(self, given.population, given.seed)


class _Mixed(_Piles):
    mode = "mixed"

    def __init__(self, options: Mixed, population: Population, seed: int) -> None:
        super().__init__(options.quotas(), np.array(population.parts, np.int64), population, options.length, seed)
        self._weights, self._parts = list(options.weights), list(population.parts)

    def _indices(self, part: Part) -> Indices:
        return self._row(part)

    def _replacement(self, part: Part, attempts: Indices) -> Indices:
        return self._row_replacement(part, attempts)

    def _options(self) -> dict[str, object]:
        return {"weights": self._weights, "parts": self._parts}
