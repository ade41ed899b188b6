"""Exact resume: a state of a few hundred bytes says where a loader goes on, whoever reads it."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo
from loader_sets import photographs, with_broken, workers, write_numbered

from iofast import FastDataset, FastLoader, order
from iofast import transforms as T
from iofast.errors import DecodeError, OptionError, StateError
from iofast.loader.loader_stats import Epoch
from iofast.meter.clock import Pass
from iofast.prefetch.readahead import Readahead
from tools.torture import determinism

CROP = [T.RandomResizedCrop(24)]
N, BATCH = 20, 6  # four batches, the last of two
MODE = order.Shuffled()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(write_numbered(tmp_path_factory.mktemp("state") / "set.lmdb", photographs(N)))


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, FastDataset]:
    """The same images in all containers."""
    return determinism.datasets(tmp_path_factory.mktemp("held"))


def make(dataset: FastDataset, **options: Any) -> FastLoader:
    given = {"batch_size": BATCH, "shuffle": True, "seed": 3, "transform": CROP, "num_workers": 2} | options
    return FastLoader(dataset, **given)


def taken(loader: FastLoader, batches: int | None = None) -> list[list[int]]:
    """The labels of an epoch's batches, or of the first few of them."""
    found: list[list[int]] = []
    if batches == 0:
        return found
    for _, labels in loader:
        found.append(labels.tolist())
        if len(found) == batches:
            break
    return found


class TestResume:
    @pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
    def test_anywhere(self, dataset: FastDataset, after: int) -> None:
        whole = make(dataset)
        epochs = [taken(whole) for _ in range(3)]
        first = make(dataset)
        assert taken(first, after) == epochs[0][:after]
        state = json.loads(json.dumps(first.state_dict()))
        again = make(dataset, num_workers=1, prefetch=1)
        again.load_state_dict(state)
        assert again.epoch == (0 if after < 4 else 1)
        if after < 4:
            assert taken(again) == epochs[0][after:]
        assert taken(again) == epochs[1]
        assert taken(again) == epochs[2]

    def test_a_sample_of_the_grid(self, held: Mapping[str, FastDataset]) -> None:
        """Containers, orders, ranks, workers and resume points; the whole is `make torture PART=determinism`."""
        assert len({data.fingerprint for data in held.values()}) == 1
        places = iter(["middle", "first", "last", "start", "next", "middle", "first", "last", "middle"])
        names = list(held)
        for number, (mode, ordering) in enumerate(determinism.modes().items()):
            whole = list(determinism.batches([determinism.loader(held["LMDB"], ordering, 1, 0, 1)]))
            returned = determinism.point(next(places), len(whole) // determinism.EPOCHS)
            ranks, before = [(2, 1), (3, 2), (8, 3)][number % 3]
            one, other = names[number % len(names)], names[(number + 1) % len(names)]
            state = determinism.state_after(held[one], ordering, before, returned)
            got = determinism.resumed(held[other], ordering, state, ranks, 1 + number % 2)
            assert got == whole[returned:], f"{mode}, from {one} to {other}"

    @pytest.mark.parametrize(("one", "other"), list(itertools.permutations(["LMDB", "tar", "TFRecord"], 2)))
    def test_a_state_of_one_container_in_another(self, held: Mapping[str, FastDataset], one: str, other: str) -> None:
        whole = [list(determinism.batches([determinism.loader(held[name], MODE, 1, 0, 1)])) for name in (one, other)]
        assert whole[0] == whole[1]
        states = [determinism.state_after(held[name], MODE, 3, 2) for name in (one, other)]
        assert states[0] == states[1]
        assert determinism.resumed(held[other], MODE, states[0], 2, 2) == whole[0][2:]

    def test_pixels_too(self, dataset: FastDataset) -> None:
        whole = [images for images, _ in make(dataset)]
        first = make(dataset)
        taken(first, 2)
        again = make(dataset)
        again.load_state_dict(first.state_dict())
        rest = [images for images, _ in again]
        assert len(rest) == 2
        assert all(torch.equal(a, b) for a, b in zip(rest, whole[2:], strict=True))

    def test_what_was_made_ahead_is_not_counted(self, dataset: FastDataset) -> None:
        loader = make(dataset, prefetch=4)
        next(iter(loader))
        assert loader.state_dict()["batch"] == 1

    def test_resume_far_into_a_large_epoch_costs_nothing(self, dataset: FastDataset) -> None:
        """Nothing of the batches before is made: the loader decodes only what comes."""
        loader = make(dataset, batch_size=1, prefetch=1, num_workers=1)
        loader.load_state_dict(loader.state_dict() | {"epoch": 10**9, "batch": 18})
        assert len(taken(loader)) == 2
        assert loader.stats.images == 2

    def test_a_batch_that_failed_was_not_returned(self, tmp_path: Path) -> None:
        broken = FastDataset(with_broken(tmp_path / "broken.lmdb", [jpeg(photo(60, 40, n)) for n in range(6)], [3]))
        loader = make(broken, batch_size=2, shuffle=False)
        iterator = iter(loader)
        assert next(iterator)[1].tolist() == [0, 1]
        with pytest.raises(DecodeError, match="truncated"):
            next(iterator)
        again = make(broken, batch_size=2, shuffle=False, on_error="drop")
        again.load_state_dict(loader.state_dict())
        assert taken(again) == [[2], [4, 5]]


class TestState:
    def test_small_and_fit_for_json(self, dataset: FastDataset) -> None:
        state = make(dataset).state_dict()
        assert json.loads(json.dumps(state)) == state
        assert set(state) == {"version", "epoch", "batch", "seed", "B", "order", "fingerprint"}
        assert len(json.dumps(state)) < 500

    def test_the_newest_iterator_is_meant(self, dataset: FastDataset) -> None:
        loader = make(dataset)
        one = iter(loader)
        next(one)
        other = iter(loader)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)
        next(one)
        next(other)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 1)

    def test_a_finished_epoch_is_the_next_ones_beginning(self, dataset: FastDataset) -> None:
        loader = make(dataset)
        taken(loader)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seed": 4}, "another seed: expected seed 4, found 3"),
            ({"batch_size": 7}, r"another global batch .*: expected B 7, found 6"),
            ({"shuffle": False}, "another order: .*sequential.*found.*shuffled"),
        ],
    )
    def test_another_loaders_state(self, dataset: FastDataset, change: dict[str, Any], message: str) -> None:
        with pytest.raises(StateError, match=message):
            make(dataset, **change).load_state_dict(make(dataset).state_dict())

    def test_another_dataset(self, dataset: FastDataset, tmp_path: Path) -> None:
        other = FastDataset(write_numbered(tmp_path / "other.lmdb", photographs(N)[::-1]))
        with pytest.raises(StateError, match="other data: expected fingerprint"):
            make(other).load_state_dict(make(dataset).state_dict())

    def test_another_part_of_the_dataset(self, dataset: FastDataset) -> None:
        part = FastDataset(dataset.path, indices=range(1, N))
        with pytest.raises(StateError, match="other data"):
            make(part).load_state_dict(make(dataset).state_dict())

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            ({}, "without version, epoch"),
            ([1], "must be a mapping, found list"),
            ({"batch": 5}, "epoch 0 must be at batch 4 or before, found batch 5"),
            ({"batch": -1}, "batch of a loader's state must be a whole number up to .*, found -1"),
            ({"epoch": "1"}, "epoch of a loader's state must be a whole number up to .*, found '1'"),
            ({"version": 2}, "another version of the state: expected version 1, found 2"),
        ],
    )
    def test_no_state_at_all(self, dataset: FastDataset, state: Any, message: str) -> None:
        loader = make(dataset)
        given = loader.state_dict() | state if state and isinstance(state, dict) else state
        with pytest.raises(StateError, match=message):
            loader.load_state_dict(given)

    def test_numbers_of_numpy_are_as_good(self, dataset: FastDataset) -> None:
        loader = make(dataset, seed=np.int64(3), batch_size=np.int32(6))
        loader.set_epoch(np.int64(2))  # type: ignore[arg-type]
        assert json.loads(json.dumps(loader.state_dict())) == make(dataset).state_dict() | {"epoch": 2}

    def test_copies_are_at_the_same_place(self, dataset: FastDataset) -> None:
        loader = make(dataset)
        rest = taken(loader)[2:]
        loader.load_state_dict(loader.state_dict() | {"epoch": 0, "batch": 2})
        for copied in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            assert taken(copied) == rest

    @pytest.mark.parametrize("where", ["readahead", "clock"])
    def test_a_ctrl_c_before_a_batch_is_handed_over_loses_none(
        self, dataset: FastDataset, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        loader = make(dataset)
        batches = iter(loader)
        first = next(batches)[1].tolist()

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        owner, name = (Readahead, "ask") if where == "readahead" else (Pass, "got")
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        assert workers() == 0
        assert not any(isinstance(each, Epoch) for each in loader._tally._epochs.values())
        again = make(dataset)
        again.load_state_dict(loader.state_dict())
        assert [first, *taken(again)] == taken(make(dataset))


class TestSetEpoch:
    def test_the_epoch_of_a_loaded_state_keeps_its_place(self, dataset: FastDataset) -> None:
        whole = make(dataset)
        first, second = taken(whole), taken(whole)
        loader = make(dataset)
        loader.load_state_dict(loader.state_dict() | {"batch": 3})
        loader.set_epoch(0)
        assert taken(loader) == first[3:]
        loader.set_epoch(1)
        assert taken(loader) == second

    def test_any_other_epoch_begins_at_its_start(self, dataset: FastDataset) -> None:
        loader = make(dataset)
        loader.load_state_dict(loader.state_dict() | {"batch": 3})
        loader.set_epoch(2)
        assert len(taken(loader)) == 4
        assert loader.epoch == 3
        for wrong in (-1, 1.5, "1", None):
            with pytest.raises(OptionError, match=f"epoch must be a whole number .* found {wrong!r}"):
                loader.set_epoch(wrong)  # type: ignore[arg-type]

    def test_an_epoch_that_was_left_goes_on_only_on_request(self, dataset: FastDataset) -> None:
        loader = make(dataset)
        first = taken(loader, 1)
        assert len(taken(loader)) == 4  # the next epoch
        loader = make(dataset)
        assert taken(loader, 1) == first
        loader.set_epoch(0)
        assert len(taken(loader)) == 3


class TestFrameworks:
    """What training frameworks do to a loader beside iterating over it."""

    def test_an_iterator_nobody_used_takes_no_epoch(self, dataset: FastDataset) -> None:
        whole = make(dataset)
        first, second = taken(whole), taken(whole)
        loader = make(dataset)
        iter(loader)  # Lightning looks whether it can
        assert loader.epoch == 0
        loader.load_state_dict(loader.state_dict() | {"batch": 2})
        iter(loader)
        assert taken(loader) == first[2:]
        iter(loader)
        assert taken(loader) == second

    def test_set_epoch_of_a_running_epoch_stops_no_clock(self, dataset: FastDataset) -> None:
        loader = make(dataset)
        batches = iter(loader)
        next(batches)
        loader.set_epoch(0)
        next(batches)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 2)
        loader.set_epoch(5)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (5, 0)

    def test_in_sequence_any_rank_may_begin_again(self, dataset: FastDataset) -> None:
        """Validation is broken off and begun anew: the ranks cannot part, for all epochs are alike."""
        loader = make(dataset, batch_size=3, shuffle=False, rank=1, world_size=2)
        assert taken(loader, 1) == taken(loader)[:1]

    def test_ranks_that_were_not_known_yet(self, dataset: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
        found, given = make(dataset), make(dataset, rank=0, world_size=1)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(StateError, match="rank of its loader, 0 of 1, found rank 1 of 2"):
            iter(found)
        assert len(taken(given)) == 4


class TestRanks:
    def test_an_epoch_is_not_abandoned_by_one_rank_alone(self, dataset: FastDataset) -> None:
        loader = make(dataset, batch_size=3, rank=1, world_size=2)
        taken(loader, 1)
        with pytest.raises(StateError, match=r"would abandon epoch 0 after 1 of 4 batches.*set_epoch\(1\)"):
            iter(loader)
        loader.set_epoch(1)
        assert len(taken(loader)) == 4
        assert len(taken(loader)) == 4

    def test_peek_changes_nothing(self, dataset: FastDataset) -> None:
        loader = make(dataset, batch_size=3, rank=0, world_size=2)
        images, labels = loader.peek()
        assert loader.state_dict()["batch"] == 0
        iterator = iter(loader)
        first_images, first_labels = next(iterator)
        assert torch.equal(images, first_images)
        assert torch.equal(labels, first_labels)
        second = loader.peek()[1]
        assert loader.state_dict()["batch"] == 1
        assert torch.equal(next(iterator)[1], second)
        del iterator
        assert workers() == 0

    @pytest.mark.parametrize("names", [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")])
    def test_of_the_launcher(
        self, dataset: FastDataset, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
    ) -> None:
        if names[0].startswith("SLURM"):
            monkeypatch.setenv("SLURM_STEP_ID", "0")
        monkeypatch.setenv(names[0], "1")
        monkeypatch.setenv(names[1], "2")
        found = make(dataset, batch_size=3, shuffle=False)
        given = make(dataset, batch_size=3, shuffle=False, rank=1, world_size=2)
        assert taken(found) == taken(given)

    def test_a_sharded_sampler_is_not_sharded_again(self, dataset: FastDataset) -> None:
        sampler: Callable[[int], Any] = lambda rank: torch.utils.data.DistributedSampler(  # noqa: E731
            range(N), num_replicas=2, rank=rank, shuffle=True, seed=5
        )
        ranks = [
            make(dataset, batch_size=3, shuffle=False, order=sampler(rank), rank=rank, world_size=2) for rank in (0, 1)
        ]
        labels = [[label for batch in taken(loader) for label in batch] for loader in ranks]
        assert sorted(labels[0] + labels[1]) == list(range(N))
        assert labels[0] == list(sampler(0))
