"""Users' functions of a sample and of a batch: their random numbers, and errors that name the sample."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iofast import FastDataset, FastLoader
from iofast.choices import generator
from iofast.errors import OptionError
from iofast.loader.options import Sample
from iofast.loader.samples import mapped

N = 12


@pytest.fixture(scope="module")
def dataset(place: Path) -> FastDataset:
    return FastDataset(place / "numbered.lmdb", fields=["index"], indices=range(N))


class TestMapBatch:
    @pytest.mark.parametrize("ranks", [1, 2])
    def test_gets_what_it_asks_for(self, dataset: FastDataset, ranks: int) -> None:
        def asking(batch: dict[str, Any], position: int, *, rng: np.random.Generator, epoch: int) -> tuple[Any, ...]:
            return batch["index"].tolist(), epoch, position, rng.random()

        seen = []
        for rank in range(ranks):
            loader = FastLoader(dataset, 4 // ranks, seed=9, map_batch=asking, rank=rank, world_size=ranks)
            loader.set_epoch(2)
            first = list(loader)
            loader.set_epoch(2)
            assert loader.peek() == first[0]
            assert list(loader) == first
            assert [(epoch, position) for _, epoch, position, _ in first] == [(2, index[0]) for index, *_ in first]
            seen += first
        numbers = {number for *_, number in seen}
        assert len(numbers) == len(seen) == N // 4 * ranks
        assert not numbers & {generator(9, 2, position).random() for position in range(N)}  # those of map_sample

    def test_is_left_alone_otherwise(self, dataset: FastDataset) -> None:
        def bound(batch: dict[str, Any], rng: str) -> str:
            return rng

        def rest(batch: dict[str, Any], **options: Any) -> dict[str, Any]:
            return options

        own = functools.partial(bound, rng="the user's own")
        assert set(FastLoader(dataset, 4, map_batch=own)) == {"the user's own"}
        assert list(FastLoader(dataset, 12, map_batch=rest)) == [{}]
        assert list(FastLoader(dataset, 12, map_batch=len)) == [2]  # index and valid


def faulty(sample: Sample, rng: np.random.Generator) -> Any:
    if sample["do"] == "value":
        raise ValueError(f"no such box: {sample['value']}")
    return None if sample["do"] == "none" else {**sample, "drawn": rng.random()}


def call(sample: Sample, seed: tuple[int, int, int, int] = (0, 0, 0, 0)) -> Sample:
    return mapped(faulty, sample, seed, "sample number 1".format)


def test_numbers_depend_on_the_place_in_the_epoch_alone() -> None:
    seeds = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    drawn = [call({"do": "nothing"}, seed)["drawn"] for seed in seeds]
    assert len(set(drawn)) == 5
    assert [call({"do": "nothing"}, seed)["drawn"] for seed in seeds] == drawn


def test_errors_say_which_sample() -> None:
    with pytest.raises(ValueError, match=r"^no such box: 7") as caught:
        call({"do": "value", "value": 7})
    assert caught.value.__notes__ == ["in map_sample: sample number 1"]
    with pytest.raises(OptionError, match="must return a dictionary, found NoneType") as wrong:
        call({"do": "none"})
    assert wrong.value.__notes__ == ["in map_sample: sample number 1"]
