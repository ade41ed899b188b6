"""torch's samplers through a loader: exact resume in any epoch, ranks that agree, nothing of the user's moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loader_sets import labels_of
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import OptionError, StateError

N, B = 20, 6  # samples, of a batch of all ranks

# Made anew for each loader, as in a new process.
SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(range(N)),
    "weighted": lambda: WeightedRandomSampler(np.arange(N).tolist(), 25),
    "subset": lambda: SubsetRandomSampler(range(3, 17)),
    "distributed": lambda: DistributedSampler(range(N), 1, 0),  # type: ignore[arg-type]
    "range": lambda: range(N - 1, -1, -1),
    "array": lambda: np.arange(2, N),
}


def make(dataset: FastDataset, sampler: Any, rank: int = 0, ranks: int = 1, **options: Any) -> FastLoader:
    given = {"seed": 3, "transform": [T.Resize((8, 8))], "num_workers": 2} | options
    return FastLoader(dataset, B // ranks, order=sampler, rank=rank, world_size=ranks, **given)


@pytest.mark.parametrize("kind", SAMPLERS)
class TestEverySampler:
    def test_resumes_in_any_epoch(self, twenty: FastDataset, kind: str) -> None:
        whole = make(twenty, SAMPLERS[kind]())
        epochs = [labels_of(whole) for _ in range(5)]
        for epoch in (0, 3):
            first = make(twenty, SAMPLERS[kind]())
            assert [labels_of(first) for _ in range(epoch)] == epochs[:epoch]
            assert labels_of(first, 1) == epochs[epoch][:1]
            again = make(twenty, SAMPLERS[kind](), num_workers=1)
            again.load_state_dict(first.state_dict())
            assert labels_of(again) == epochs[epoch][1:]
            assert labels_of(again) == epochs[epoch + 1]

    def test_another_samplers_state_is_refused(self, twenty: FastDataset, kind: str) -> None:
        state = make(twenty, SAMPLERS[kind]()).state_dict()
        for other in SAMPLERS:
            if other != kind:
                with pytest.raises(StateError, match="another order"):
                    make(twenty, SAMPLERS[other]()).load_state_dict(state)


def test_checksums_refuse_other_indices(twenty: FastDataset) -> None:
    weights = [1.0] * N, [0.0] + [1.0] * (N - 1)
    for own, other in (([1, 2, 3], [1, 3, 2]), tuple(WeightedRandomSampler(each, N) for each in weights)):
        state = make(twenty, own).state_dict()
        make(twenty, own).load_state_dict(state)
        with pytest.raises(StateError, match=r"another order: .*checksum"):
            make(twenty, other).load_state_dict(state)


class TestShares:
    """A DistributedSampler gives each rank its share by itself."""

    def test_resume_in_epoch_3_from_any_ranks_state(self, twenty: FastDataset) -> None:
        def loaders() -> list[FastLoader]:
            return [make(twenty, DistributedSampler(range(N), 2, rank), rank, 2) for rank in (0, 1)]  # type: ignore[arg-type]

        whole, first = loaders(), loaders()[1]
        for loader in (*whole, first):
            loader.set_epoch(3)
        expected = [labels_of(loader) for loader in whole]
        assert sorted(label for share in expected for batch in share for label in batch) == list(range(N))
        labels_of(first, 2)
        for loader, share in zip(loaders(), expected, strict=True):
            loader.load_state_dict(first.state_dict())
            assert labels_of(loader) == share[2:]

    def test_each_rank_draws_for_itself(self, twenty: FastDataset) -> None:
        """A sampler's positions begin at 0 on each rank; crops and `rng` are still those of a single rank."""

        def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
            return sample | {"label": torch.tensor([sample["label"], int(rng.integers(1 << 40))])}

        def made(loaders: list[FastLoader]) -> dict[int, tuple[int, bytes]]:
            batches = [batch for each in loaders for batch in each]
            found = [(*label.tolist(), image) for batch in batches for image, label in zip(*batch, strict=True)]
            return {number: (draw, image.numpy().tobytes()) for number, draw, image in found}

        given = {"transform": [T.RandomResizedCrop(8)], "map_sample": drawn}
        samplers = [DistributedSampler(range(N), 2, rank) for rank in (0, 1)]  # type: ignore[arg-type]
        ranks = made([make(twenty, sampler, rank, 2, **given) for rank, sampler in enumerate(samplers)])
        whole = made([make(twenty, DistributedSampler(range(N), 1, 0), **given)])  # type: ignore[arg-type]
        assert len(ranks) == len({draw for draw, _ in ranks.values()}) == N
        assert ranks == whole

    @pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 2), (1, 3)])
    def test_of_another_rank(self, twenty: FastDataset, rank: int, ranks: int) -> None:
        sampler = DistributedSampler(range(N), 2, 1)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=f"this loader, rank {rank} of {ranks}, found that of rank 1 of 2"):
            make(twenty, sampler, rank, ranks)
