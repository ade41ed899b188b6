"""Exact resume from a state of a few hundred bytes, in any order, also of torch's samplers."""

import copy
import itertools
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from loader_sets import digest, labels_of, workers
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from iofast import FastDataset, FastLoader, order
from iofast import transforms as T
from iofast.errors import OptionError, StateError
from iofast.loader.state import Course
from tools.torture import determinism

CROP = [T.RandomResizedCrop(24)]
N, BATCH = 20, 6  # four batches, the last of two


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, FastDataset]:
    """The same images in all containers."""
    return determinism.datasets(tmp_path_factory.mktemp("held"))


def make(dataset: FastDataset, **options: Any) -> FastLoader:
    given = {"batch_size": BATCH, "shuffle": True, "seed": 3, "transform": CROP, "num_workers": 2} | options
    return FastLoader(dataset, **given)


class TestResume:
    @pytest.mark.parametrize("after", range(5))
    def test_anywhere(self, twenty: FastDataset, after: int) -> None:
        whole, first = make(twenty), make(twenty)
        epochs = [list(whole) for _ in range(3)]
        labels = [labels_of(epoch) for epoch in epochs]
        assert labels_of(first, after) == labels[0][:after]
        state = json.loads(json.dumps(first.state_dict()))
        assert (state["epoch"], state["batch"]) == ((0, after) if after < 4 else (1, 0))
        again = make(twenty, num_workers=1, prefetch=4)
        again.load_state_dict(state)
        assert (again.epoch, again.batch) == (state["epoch"], state["batch"])
        if after < 4:
            assert digest(again) == digest(epochs[0][after:])
            assert again.stats.images == N - BATCH * after  # those before are not decoded
        assert [labels_of(again), labels_of(again)] == labels[1:]

    def test_a_sample_of_the_grid(self, held: Mapping[str, FastDataset]) -> None:
        """Containers, orders, ranks, workers and resume points; the whole is `make torture PART=determinism`."""
        assert len({data.fingerprint for data in held.values()}) == 1
        places = itertools.cycle(["middle", "first", "last", "start", "next", "middle", "first", "last"])
        names = list(held)
        for number, (mode, ordering) in enumerate(determinism.modes().items()):
            whole = list(determinism.batches([determinism.loader(held["LMDB"], ordering, 1, 0, 1)]))
            returned = determinism.point(next(places), len(whole) // determinism.EPOCHS)
            ranks, before = [(2, 1), (3, 2), (8, 3)][number % 3]
            one, other = names[number % len(names)], names[(number + 1) % len(names)]
            state = determinism.state_after(held[one], ordering, before, returned)
            got = determinism.resumed(held[other], ordering, state, ranks, 1 + number % 2)
            assert got == whole[returned:], f"{mode}, from {one} to {other}"


class TestState:
    def test_small_and_fit_for_json(self, twenty: FastDataset) -> None:
        loader = make(twenty, seed=np.int64(3), batch_size=np.int32(6))
        loader.set_epoch(np.int64(2))  # type: ignore[arg-type]
        state = loader.state_dict()
        assert json.loads(json.dumps(state)) == state == make(twenty).state_dict() | {"epoch": 2}
        assert set(state) == {"version", "epoch", "batch", "seed", "B", "order", "fingerprint"}
        assert len(json.dumps(state)) < 500
        for wrong in (-1, 1.5, None):
            with pytest.raises(OptionError, match=f"epoch must be a whole number .* found {wrong!r}"):
                loader.set_epoch(wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seed": 4}, "another seed: expected seed 4, found 3"),
            ({"batch_size": 7}, r"another global batch .*: expected B 7, found 6"),
            ({"shuffle": False}, "another order: .*sequential.*found.*shuffled"),
            ({"indices": range(1, N)}, "other data: expected fingerprint"),
            ({"path": "numbered.lmdb"}, "other data: expected fingerprint"),
        ],
    )
    def test_another_loaders_state(self, place: Path, change: dict[str, Any], message: str) -> None:
        options = dict(change)
        path, indices = place / options.pop("path", "twenty.lmdb"), options.pop("indices", None)
        state = make(FastDataset(place / "twenty.lmdb")).state_dict()
        with pytest.raises(StateError, match=message):
            make(FastDataset(path, indices=indices), **options).load_state_dict(state)

    def test_of_grouped_batches_of_another_size(self, twenty: FastDataset) -> None:
        state = make(twenty, shuffle=False, order=order.Grouped(3)).state_dict()
        with pytest.raises(StateError, match=r"another order: expected .*'batch': 9.* found .*'batch': 6"):
            make(twenty, shuffle=False, order=order.Grouped(3), batch_size=9).load_state_dict(state)

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            ({}, "without version, epoch"),
            ([1], "must be a mapping, found list"),
            ({"batch": 5}, "epoch 0 must be at batch 4 or before, found batch 5"),
            ({"epoch": "1"}, "epoch of a loader's state must be a whole number up to .*, found '1'"),
            ({"version": 2}, "another version of the state: expected version 1, found 2"),
        ],
    )
    def test_what_is_no_state(self, twenty: FastDataset, state: Any, message: str) -> None:
        loader = make(twenty)
        given = loader.state_dict() | state if state and isinstance(state, dict) else state
        with pytest.raises(StateError, match=message):
            loader.load_state_dict(given)

    def test_copies_are_at_the_same_place(self, twenty: FastDataset) -> None:
        loader = make(twenty)
        rest = labels_of(loader)[2:]
        loader.load_state_dict(loader.state_dict() | {"epoch": 0, "batch": 2})
        for copied in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            assert labels_of(copied) == rest

    @pytest.mark.parametrize("where", ["iofast.prefetch.readahead.Readahead.ask", "iofast.meter.clock.Pass.got"])
    def test_a_ctrl_c_before_a_batch_is_handed_over_loses_none(self, twenty: FastDataset, where: str) -> None:
        loader = make(twenty)
        batches = iter(loader)
        first = next(batches)[1].tolist()
        with patch(where, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            next(batches)
        assert workers() == 0
        assert all(each.ended for each in loader._tally._epochs)
        again = make(twenty)
        again.load_state_dict(loader.state_dict())
        assert [first, *labels_of(again)] == labels_of(make(twenty))


PLACES = {  # what was done with epochs of four batches -> epoch and batch where the next iterator begins
    "": (0, 0),
    "iter": (1, 0),
    "iter, drop": (0, 0),  # it took nothing: Lightning only checks that it can iterate
    "iter, take 4": (1, 0),
    "iter, take 3": (1, 0),  # an epoch that was left is resumed only on request
    "iter, take 3, set 0": (0, 3),
    "iter, take 3, anew 0": (0, 0),
    "iter, take 4, set 0": (0, 0),
    "iter, take 3, set 0, iter, take 1": (1, 0),
    "iter, take 1, iter, take 2, set 1": (1, 2),  # the newest iterator counts
    "iter, set 2": (2, 0),  # one that has not begun follows
    "iter, set 2, take 1": (2, 1),
    "iter, set 0, take 4": (1, 0),
    "iter, take 1, set 0, take 1": (0, 2),
    "iter, take 1, set 0, take 1, set 5": (5, 0),
    "load 0 3": (0, 3),
    "load 0 3, set 0": (0, 3),
    "load 0 3, anew 0": (0, 3),
    "load 0 3, set 2": (2, 0),
    "load 0 2, iter, drop": (0, 2),
    "load 0 2, iter, take 2": (1, 0),
    "load 0 2, iter, anew 0": (0, 2),
}


@pytest.mark.parametrize("script", PLACES)
def test_where_the_next_iterator_begins(script: str) -> None:
    course, iterators, progresses = Course(), list[Any](), list[Any]()

    def batches(progress: Any) -> Any:
        progresses.append(progress)
        return (number for number in range(4))

    for step in filter(None, script.split(", ")):
        name, *numbers = step.split()
        count, *more = map(int, numbers or [0])
        match name:
            case "iter":
                iterators.append(course.begin(4, batches))
            case "drop":
                iterators.pop()
            case "take":
                progresses[-1].fresh = False
                progresses[-1].batch += count
            case "load":
                course.load((count, *more))  # type: ignore[arg-type]
            case _:
                course.set_epoch(count, anew=name == "anew")
    assert course.next == PLACES[script]


class TestFrameworks:
    """Calls of training frameworks beside iteration."""

    def test_in_sequence_any_rank_may_begin_again(self, twenty: FastDataset) -> None:
        """Validation is stopped and restarted: ranks stay in step, because all epochs are alike."""
        loader = make(twenty, batch_size=3, shuffle=False, rank=1, world_size=2)
        assert labels_of(loader, 1) == labels_of(loader)[:1]

    def test_ranks_that_were_not_known_yet(self, twenty: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
        found, given = make(twenty), make(twenty, rank=0, world_size=1)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(StateError, match="rank of its loader, 0 of 1, found rank 1 of 2"):
            iter(found)
        assert len(labels_of(given)) == 4


class TestRanks:
    def test_an_epoch_is_not_abandoned_by_one_rank_alone(self, twenty: FastDataset) -> None:
        loader = make(twenty, batch_size=3, rank=1, world_size=2)
        labels_of(loader, 1)
        with pytest.raises(StateError, match=r"would abandon epoch 0 after 1 of 4 batches.*set_epoch\(1\)"):
            iter(loader)
        loader.set_epoch(1)
        assert len(labels_of(loader)) == 4
        assert len(labels_of(loader)) == 4

    def test_peek_changes_nothing(self, twenty: FastDataset) -> None:
        loader = make(twenty, batch_size=3, rank=0, world_size=2)
        first = loader.peek()
        assert loader.state_dict()["batch"] == 0
        batches = iter(loader)
        assert all(map(torch.equal, next(batches), first))
        second = loader.peek()
        assert loader.state_dict()["batch"] == 1
        assert all(map(torch.equal, next(batches), second))
        del batches
        assert workers() == 0

    @pytest.mark.parametrize("names", [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")])
    def test_of_the_launcher(
        self, twenty: FastDataset, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
    ) -> None:
        if names[0].startswith("SLURM"):
            monkeypatch.setenv("SLURM_STEP_ID", "0")
        monkeypatch.setenv(names[0], "1")
        monkeypatch.setenv(names[1], "2")
        found = make(twenty, batch_size=3, shuffle=False)
        given = make(twenty, batch_size=3, shuffle=False, rank=1, world_size=2)
        assert labels_of(found) == labels_of(given)


# --- torch's samplers: ranks that agree, nothing of the user's moved


# Made anew for each loader, as in a new process.
SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(range(N)),
    "weighted": lambda: WeightedRandomSampler(np.arange(N).tolist(), 25),
    "subset": lambda: SubsetRandomSampler(range(3, 17)),
    "distributed": lambda: DistributedSampler(range(N), 1, 0),  # type: ignore[arg-type]
    "range": lambda: range(N - 1, -1, -1),
    "array": lambda: np.arange(2, N),
}


def sampled(dataset: FastDataset, sampler: Any, rank: int = 0, ranks: int = 1, **options: Any) -> FastLoader:
    given = {"seed": 3, "transform": [T.Resize((8, 8))], "num_workers": 2} | options
    return FastLoader(dataset, BATCH // ranks, order=sampler, rank=rank, world_size=ranks, **given)


@pytest.mark.parametrize("kind", SAMPLERS)
class TestEverySampler:
    def test_resumes_in_any_epoch(self, twenty: FastDataset, kind: str) -> None:
        whole = sampled(twenty, SAMPLERS[kind]())
        epochs = [labels_of(whole) for _ in range(5)]
        for epoch in (0, 3):
            first = sampled(twenty, SAMPLERS[kind]())
            assert [labels_of(first) for _ in range(epoch)] == epochs[:epoch]
            assert labels_of(first, 1) == epochs[epoch][:1]
            again = sampled(twenty, SAMPLERS[kind](), num_workers=1)
            again.load_state_dict(first.state_dict())
            assert labels_of(again) == epochs[epoch][1:]
            assert labels_of(again) == epochs[epoch + 1]

    def test_another_samplers_state_is_refused(self, twenty: FastDataset, kind: str) -> None:
        state = sampled(twenty, SAMPLERS[kind]()).state_dict()
        for other in SAMPLERS:
            if other != kind:
                with pytest.raises(StateError, match="another order"):
                    sampled(twenty, SAMPLERS[other]()).load_state_dict(state)


def test_checksums_refuse_other_indices(twenty: FastDataset) -> None:
    weights = [1.0] * N, [0.0] + [1.0] * (N - 1)
    for own, other in (([1, 2, 3], [1, 3, 2]), tuple(WeightedRandomSampler(each, N) for each in weights)):
        state = sampled(twenty, own).state_dict()
        sampled(twenty, own).load_state_dict(state)
        with pytest.raises(StateError, match=r"another order: .*checksum"):
            sampled(twenty, other).load_state_dict(state)


class TestShares:
    """A DistributedSampler gives each rank its share by itself."""

    def test_resume_in_epoch_3_from_any_ranks_state(self, twenty: FastDataset) -> None:
        def loaders() -> list[FastLoader]:
            return [sampled(twenty, DistributedSampler(range(N), 2, rank), rank, 2) for rank in (0, 1)]  # type: ignore[arg-type]

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
        ranks = made([sampled(twenty, sampler, rank, 2, **given) for rank, sampler in enumerate(samplers)])
        whole = made([sampled(twenty, DistributedSampler(range(N), 1, 0), **given)])  # type: ignore[arg-type]
        assert len(ranks) == len({draw for draw, _ in ranks.values()}) == N
        assert ranks == whole

    @pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 2), (1, 3)])
    def test_of_another_rank(self, twenty: FastDataset, rank: int, ranks: int) -> None:
        sampler = DistributedSampler(range(N), 2, 1)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=f"this loader, rank {rank} of {ranks}, found that of rank 1 of 2"):
            sampled(twenty, sampler, rank, ranks)
