"""Samplers that never end, as in self-supervised training: one epoch without end, resumed by batches."""

import json
import pickle
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
import torch
from at_once import in_child
from loader_sets import photographs, write_numbered
from torch.utils.data import Sampler

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import OptionError, StateError
from iofast.order import Order, Population, Repeated, Sampled
from iofast.order.sampled import EPOCHS, KEPT

N, B = 20, 6


class Infinite(Sampler[int]):
    """Permutations of `n` samples one after another, without a length, as DINOv2's InfiniteSampler."""

    def __init__(self, n: int = N, seed: int = 0, start: int = 0, step: int = 1) -> None:
        self.n, self.seed, self.start, self.step = n, seed, start, step
        self.runs = self.given = 0

    def __iter__(self) -> Iterator[int]:
        self.runs += 1
        for index in islice(self.everything(), self.start, None, self.step):
            self.given += 1
            yield index

    def everything(self) -> Iterator[int]:
        rng = np.random.default_rng(self.seed)
        while True:
            yield from rng.permutation(self.n).tolist()


def first(sampler: Infinite, most: int) -> list[int]:
    return list(islice(sampler.everything(), sampler.start, sampler.start + most * sampler.step, sampler.step))


def bound(sampler: Any, population: int = N, batch: int = B) -> Order:
    return Sampled(sampler).bind(Population(population), 0, batch)


class TestOrder:
    def test_only_needed_indices_are_taken(self) -> None:
        sampler = Infinite()
        order = bound(sampler)
        assert order.endless
        assert order.describe() == {"mode": "sampled", "count": N, "length": None, "sampler": "Infinite"}
        looked = sampler.given
        assert order.indices(0, np.arange(1000)).tolist() == first(sampler, 1000)
        assert sampler.given < looked + 10_000
        assert Repeated(2, Sampled(Infinite())).bind(Population(N)).endless

    def test_any_position_has_its_sample(self) -> None:
        sampler = Infinite()
        order, wanted = bound(sampler), np.array(first(sampler, 200_000))
        for each in (range(70), range(150_000, 150_006), range(149_900, 149_906), range(5), [2399, 0, 2390]):
            positions = np.array(each)
            assert (order.indices(0, positions) == wanted[positions]).all()
        with pytest.raises(OptionError, match=f"must be within {KEPT * B} of each other, found 0 to {KEPT * B}$"):
            order.indices(0, np.array([0, KEPT * B]))

    def test_the_newest_indices_are_kept(self) -> None:
        sampler = Infinite()
        order, wanted = bound(sampler), first(sampler, 3 * KEPT * B)
        runs = sampler.runs
        for start in range(0, 2 * KEPT * B, B):
            order.indices(0, np.arange(start, start + B))
            oldest = max(0, start + B - KEPT * B)
            assert order.indices(0, np.array([oldest])) == wanted[oldest]
        assert sampler.runs == runs + 1
        order.indices(0, np.arange(oldest - 1, oldest))
        assert sampler.runs == runs + 2
        for epoch in range(1, EPOCHS + 1):
            order.indices(epoch, np.arange(B))
        order.indices(0, np.arange(B))
        assert sampler.runs == runs + EPOCHS + 3

    def test_replacements_are_of_the_same_batch(self) -> None:
        sampler = Infinite()
        order, positions = bound(sampler), np.arange(600, 606)
        batch = first(sampler, 606)[600:]
        drawn = np.concatenate([order.replacement(0, positions, attempt) for attempt in range(1, 30)])
        assert set(drawn.tolist()) == set(batch)
        assert order.replacement(0, positions[2:4], 5).tolist() == order.replacement(0, positions, 5)[2:4].tolist()

    def test_pickles_and_forks_begin_a_run_of_their_own(self) -> None:
        sampler = Infinite()
        order, wanted = bound(sampler), first(sampler, 300)
        assert order.indices(0, np.arange(100)).tolist() == wanted[:100]
        again = pickle.loads(pickle.dumps(order))
        assert again.indices(0, np.arange(300)).tolist() == wanted
        assert again.describe() == order.describe()
        assert in_child(lambda: order.indices(0, np.arange(200, 300)).tolist() == wanted[200:]) == 0

    def test_a_sampler_without_a_length_that_ends(self) -> None:
        class Finite(Infinite):
            def __init__(self, end: int) -> None:
                super().__init__()
                self.end = end

            def __iter__(self) -> Iterator[int]:
                return islice(super().__iter__(), self.end)

        order = bound(Finite(50))
        assert (order.endless, order.length) == (False, 50)
        late = bound(Finite(100_000))
        assert late.endless
        for _ in range(2):
            with pytest.raises(OptionError, match=r"^the sampler Finite has no length and ended after 100000 indices"):
                late.indices(0, np.arange(99_990, 100_010))
        assert late.indices(0, np.arange(99_990, 100_000)).tolist() == first(Finite(0), 100_000)[-10:]

    def test_wrong_indices_are_refused(self) -> None:
        class Odd(Sampler[int]):
            def __iter__(self) -> Iterator[int]:
                return (N if at == 70_000 else 0 for at in count())

        with pytest.raises(OptionError, match=f"found {N} at position 70000 of epoch 0"):
            bound(Odd()).indices(0, np.arange(69_999, 70_002))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(write_numbered(tmp_path_factory.mktemp("endless") / "set.lmdb", photographs(N)))


def make(dataset: FastDataset, sampler: Any, rank: int = 0, ranks: int = 1, **options: Any) -> FastLoader:
    given = {"transform": [T.RandomResizedCrop(8)], "num_workers": 2} | options
    return FastLoader(dataset, B // ranks, order=sampler, rank=rank, world_size=ranks, **given)


def taken(loader: FastLoader, batches: int) -> list[list[int]]:
    return [labels.tolist() for _, labels in islice(loader, batches)]


def batches_of(sampler: Infinite, batches: int, size: int = B) -> list[list[int]]:
    indices = first(sampler, batches * size)
    return [indices[at : at + size] for at in range(0, len(indices), size)]


class TestEndlessInLoader:
    def test_has_no_length_and_no_end(self, dataset: FastDataset) -> None:
        loader = make(dataset, Infinite())
        assert taken(loader, 20) == batches_of(Infinite(), 20)
        for sized in (loader, loader.sampler):
            with pytest.raises(TypeError, match=r"no length: .* never ends"):
                len(sized)
        assert loader  # frameworks ask whether there is one
        assert "an epoch without an end, next is batch" in repr(loader)
        assert list(islice(loader.sampler, 8)) == first(Infinite(), 8)

    def test_a_resume_continues_after_the_last_batch(
        self, dataset: FastDataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        loader = make(dataset, Infinite())
        whole = list(islice(loader, 12))
        again = make(dataset, Infinite(), num_workers=1)
        taken(again, 7)
        state = json.loads(json.dumps(again.state_dict()))
        assert (state["epoch"], state["batch"], state["order"]["length"]) == (0, 7, None)
        with pytest.raises(StateError, match="another order"):
            make(dataset, range(N)).load_state_dict(state)
        last = make(dataset, Infinite(), num_workers=0)
        last.load_state_dict(state)
        assert "draws its sampler again from the start of epoch 0, and skips 7 batches" in caplog.text
        assert (last.epoch, last.batch) == (0, 7)
        for (images, labels), (wanted, theirs) in zip(islice(last, 5), whole[7:], strict=True):
            assert torch.equal(images, wanted)
            assert torch.equal(labels, theirs)

    def test_ranks_together_are_one_and_a_share_is_not_dealt_again(self, dataset: FastDataset) -> None:
        """A sampler that steps over the others' samples says so by the attributes of torch's DistributedSampler."""
        shares = [taken(make(dataset, Infinite(), rank, 2), 9) for rank in (0, 1)]
        assert [a + b for a, b in zip(*shares, strict=True)] == batches_of(Infinite(), 9)
        for rank in (0, 1):
            sampler = Infinite(start=rank, step=2)
            sampler.num_replicas, sampler.rank = 2, rank  # type: ignore[attr-defined]
            assert taken(make(dataset, sampler, rank, 2), 9) == batches_of(sampler, 9, B // 2)
