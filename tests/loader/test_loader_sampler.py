"""torch's samplers through a loader: exact resume in any epoch, ranks that agree, nothing of the user's moved."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from loader_sets import photographs, write_numbered
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import OptionError, StateError

N, B = 20, 6  # samples, of a batch of all ranks
SEEDS = count()

# Made anew for each loader, as a new process would. The generator that is given is never in the same state twice.
SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(range(N)),
    "random seeded": lambda: RandomSampler(range(N), generator=torch.Generator().manual_seed(next(SEEDS))),
    "random replaced": lambda: RandomSampler(range(N), replacement=True, num_samples=40),
    "weighted": lambda: WeightedRandomSampler(np.arange(N).tolist(), 25),
    "subset": lambda: SubsetRandomSampler(range(3, 17)),
    "distributed": lambda: DistributedSampler(range(N), 1, 0),  # type: ignore[arg-type]
    "range": lambda: range(N - 1, -1, -1),
    "list": lambda: [3, 1, 4, 1, 5, 9, 2, 6],
    "array": lambda: np.arange(2, N),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(write_numbered(tmp_path_factory.mktemp("sampler") / "set.lmdb", photographs(N)))


def make(dataset: FastDataset, sampler: Any, rank: int = 0, ranks: int = 1, **options: Any) -> FastLoader:
    given = {"seed": 3, "transform": [T.Resize((8, 8))], "num_workers": 2} | options
    return FastLoader(dataset, B // ranks, order=sampler, rank=rank, world_size=ranks, **given)


def taken(loader: FastLoader, batches: int | None = None) -> list[list[int]]:
    """The labels of an epoch's batches, or of the first few of them."""
    found = []
    for _, labels in loader:
        found.append(labels.tolist())
        if len(found) == batches:
            break
    return found


def resumed(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it comes from a file."""
    read: dict[str, Any] = json.loads(json.dumps(state))
    return read


@pytest.mark.parametrize("kind", SAMPLERS)
class TestEverySampler:
    def test_resumes_in_any_epoch(self, dataset: FastDataset, kind: str) -> None:
        whole = make(dataset, SAMPLERS[kind]())
        epochs = [taken(whole) for _ in range(5)]
        for epoch in (0, 3):
            first = make(dataset, SAMPLERS[kind]())
            assert [taken(first) for _ in range(epoch)] == epochs[:epoch]
            assert taken(first, 1) == epochs[epoch][:1]
            again = make(dataset, SAMPLERS[kind](), num_workers=1)
            again.load_state_dict(resumed(first.state_dict()))
            assert taken(again) == epochs[epoch][1:]
            assert taken(again) == epochs[epoch + 1]

    def test_an_epoch_that_is_set_is_the_one_that_is_reached(self, dataset: FastDataset, kind: str) -> None:
        whole = make(dataset, SAMPLERS[kind]())
        epochs = [taken(whole) for _ in range(6)]
        other = make(dataset, SAMPLERS[kind]())
        for epoch in (3, 0):
            whole.set_epoch(epoch)  # also one of those that are no longer kept
            other.set_epoch(epoch)
            assert taken(whole) == taken(other) == epochs[epoch]

    def test_ranks_together_are_one(self, dataset: FastDataset, kind: str) -> None:
        one = make(dataset, SAMPLERS[kind](), drop_last=True)
        one.set_epoch(2)
        ranks = [make(dataset, SAMPLERS[kind](), rank, 2, drop_last=True) for rank in (0, 1)]
        for loader in ranks:
            loader.load_state_dict(resumed(one.state_dict()))
        shares = [taken(loader) for loader in ranks]
        assert [first + second for first, second in zip(*shares, strict=True)] == taken(one)

    def test_nothing_of_the_users_moves(self, dataset: FastDataset, kind: str) -> None:
        sampler = SAMPLERS[kind]()
        generator = getattr(sampler, "generator", None)
        before = torch.get_rng_state(), generator and generator.get_state()
        loader = make(dataset, sampler)
        loader.load_state_dict(loader.state_dict())
        taken(loader, 2)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert getattr(sampler, "generator", None) is generator
        assert generator is None or torch.equal(generator.get_state(), before[1])

    def test_another_samplers_state_is_refused(self, dataset: FastDataset, kind: str) -> None:
        state = make(dataset, SAMPLERS[kind]()).state_dict()
        for other in SAMPLERS:
            if other != kind and {other, kind} != {"random", "random seeded"}:
                with pytest.raises(StateError, match="another order"):
                    make(dataset, SAMPLERS[other]()).load_state_dict(state)


def test_checksums_refuse_other_indices(dataset: FastDataset) -> None:
    state = make(dataset, [1, 2, 3]).state_dict()
    make(dataset, [1, 2, 3]).load_state_dict(state)
    with pytest.raises(StateError, match=r"another order: .*checksum"):
        make(dataset, [1, 3, 2]).load_state_dict(state)
    weighted = make(dataset, WeightedRandomSampler([1.0] * N, N)).state_dict()
    with pytest.raises(StateError, match=r"another order: .*checksum"):
        make(dataset, WeightedRandomSampler([0.0] + [1.0] * (N - 1), N)).load_state_dict(weighted)


class TestShares:
    """A DistributedSampler gives each rank its share by itself."""

    def shares(self, dataset: FastDataset, **options: Any) -> list[FastLoader]:
        samplers = [DistributedSampler(range(N), 2, rank, **options) for rank in (0, 1)]  # type: ignore[arg-type]
        return [make(dataset, sampler, rank, 2) for rank, sampler in enumerate(samplers)]

    def test_resume_in_epoch_3_from_any_ranks_state(self, dataset: FastDataset) -> None:
        whole = self.shares(dataset)
        for loader in whole:
            loader.set_epoch(3)
        expected = [taken(loader) for loader in whole]
        assert sorted(label for share in expected for batch in share for label in batch) == list(range(N))
        first = self.shares(dataset)[1]
        first.set_epoch(3)
        taken(first, 2)
        for loader, share in zip(self.shares(dataset), expected, strict=True):
            loader.load_state_dict(resumed(first.state_dict()))
            assert taken(loader) == share[2:]

    def test_each_rank_draws_for_itself(self, dataset: FastDataset) -> None:
        """The sampler's own positions begin at 0 on each rank; crops and `rng` are those of one rank with all of it."""

        def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
            return sample | {"label": torch.tensor([sample["label"], int(rng.integers(1 << 40))])}

        def made(loaders: list[FastLoader]) -> dict[int, tuple[int, bytes]]:
            found = [
                (int(number), int(draw), image)
                for each in loaders
                for images, labels in each
                for image, (number, draw) in zip(images, labels, strict=True)
            ]
            return {number: (draw, image.numpy().tobytes()) for number, draw, image in found}

        given = {"transform": [T.RandomResizedCrop(8)], "map_sample": drawn}
        samplers = [DistributedSampler(range(N), 2, rank) for rank in (0, 1)]  # type: ignore[arg-type]
        ranks = made([make(dataset, sampler, rank, 2, **given) for rank, sampler in enumerate(samplers)])
        whole = made([make(dataset, DistributedSampler(range(N), 1, 0), **given)])  # type: ignore[arg-type]
        assert len(ranks) == len({draw for draw, _ in ranks.values()}) == N
        assert ranks == whole

    @pytest.mark.parametrize("options", [{"seed": 2}, {"shuffle": False}, {"drop_last": True}])
    def test_another_samplers_state_is_refused(self, dataset: FastDataset, options: dict[str, Any]) -> None:
        state = self.shares(dataset, seed=1)[0].state_dict()
        with pytest.raises(StateError, match="another order"):
            self.shares(dataset, **{"seed": 1} | options)[1].load_state_dict(state)

    @pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 2), (1, 3)])
    def test_of_another_rank(self, dataset: FastDataset, rank: int, ranks: int) -> None:
        sampler = DistributedSampler(range(N), 2, 1)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=f"this loader, rank {rank} of {ranks}, found that of rank 1 of 2"):
            make(dataset, sampler, rank, ranks)
