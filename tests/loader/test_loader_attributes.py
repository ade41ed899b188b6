"""The interface of a loader beside its batches: attributes, a sampler, its place, a repr."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from loader_sets import all_labels
from loader_sets import labels_of as taken
from torch.utils.data import RandomSampler, SequentialSampler

from iofast import FastDataset, FastLoader, order
from iofast import transforms as T
from iofast.errors import OptionError, StateError

N, BATCH = 20, 6  # four batches, the last of two
RESIZE = [T.Resize((8, 8))]


def make(dataset: FastDataset, **options: Any) -> FastLoader:
    given = {"batch_size": BATCH, "shuffle": True, "transform": RESIZE, "num_workers": 1} | options
    return FastLoader(dataset, **given)


class TestAttributes:
    def test_those_of_torchs_dataloader(self, twenty: FastDataset) -> None:
        loader = make(twenty, drop_last=True, num_workers=2)
        assert (loader.batch_size, loader.drop_last, loader.num_workers) == (BATCH, True, 2)
        assert loader.dataset is twenty
        assert loader.batch_sampler is None
        assert not hasattr(loader, "collate_fn")
        assert isinstance(make(twenty, num_workers="auto").num_workers, int)

    @pytest.mark.parametrize(
        ("module", "function", "words"),
        [
            ("accelerate.data_loader", "skip_first_batches", "skip_first_batches cannot skip .*load_state_dict"),
            ("accelerate.data_loader", "prepare_data_loader", "prepare_data_loader cannot rebuild a FastLoader"),
            ("transformers.trainer", "train", "the Trainer cannot skip .*ignore_data_skip=True"),
        ],
    )
    def test_a_framework_that_rebuilds_it_is_named(
        self, twenty: FastDataset, module: str, function: str, words: str
    ) -> None:
        """As Accelerate reads it; `test_frameworks.py` asks the frameworks themselves."""
        there: dict[str, Any] = {"__name__": module}
        exec(f"def {function}(loader): return loader.multiprocessing_context", there)
        with pytest.raises(OptionError, match=f"^{words}"):
            there[function](make(twenty))

    @pytest.mark.parametrize(
        "name", ["batch_size", "transform", "shuffle", "num_workers", "dataset", "sampler", "batch_sampler"]
    )
    def test_none_can_be_assigned(self, twenty: FastDataset, name: str) -> None:
        loader = make(twenty)
        option = "order" if name.endswith("sampler") else name
        with pytest.raises(OptionError, match=rf"^{name} of a loader cannot be changed .* FastLoader with {option}="):
            setattr(loader, name, 1)
        for name in ("epoch", "batch"):
            with pytest.raises(AttributeError):
                setattr(loader, name, 1)

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("sampler", "give it as order="),
            ("batch_sampler", "give its sampler as order="),
            ("pin_memory", "leave it out, because with device='cuda'"),
            ("collate_fn", r"give collate=\{field: function\} .*, or map_batch="),
            ("persistent_workers", "leave it out, because workers are threads"),
            ("worker_init_fn", "leave it out, because workers are threads"),
            ("prefetch_factor", "give prefetch="),
            ("timeout", "leave it out"),
            ("generator", "give seed="),
            ("multiprocessing_context", "leave it out"),
            ("mesh", "give it as group="),
            ("batchsize", r"did you mean batch_size\?"),
            ("xyz", "see LoaderOptions"),
        ],
    )
    def test_options_of_others(self, twenty: FastDataset, name: str, advice: str) -> None:
        with pytest.raises(OptionError, match=f"^{name} is not an option of FastLoader: {advice}"):
            FastLoader(twenty, **{name: None})

    def test_too_many_without_names(self, twenty: FastDataset) -> None:
        with pytest.raises(OptionError, match="dataset, batch_size and shuffle by position, found 5 as the fourth"):
            FastLoader(twenty, 4, True, 5)  # type: ignore[call-arg]

    def test_repr(self, twenty: FastDataset) -> None:
        loader = make(twenty, rank=1, world_size=2, dtype=torch.float32)
        assert repr(loader) == (
            f"FastLoader(FastDataset({twenty.path!r}): 20 samples, batch_size=6, shuffle=True, "
            "transform=[Resize(size=(8, 8), interpolation='bilinear', max_size=None)], dtype=torch.float32, "
            "num_workers=1, rank 1 of 2: 2 batches an epoch, next is batch 0 of epoch 0)"
        )
        assert repr(FastLoader(twenty)).endswith(
            ": 20 samples, rank 0 of 1: 20 batches an epoch, next is batch 0 of epoch 0)"
        )


class TestPlace:
    def test_batch_is_where_the_next_iterator_begins(self, twenty: FastDataset) -> None:
        whole, loader = taken(make(twenty)), make(twenty)
        assert loader.batch == 0
        taken(loader, 3)
        assert (loader.epoch, loader.batch) == (1, 0)  # the rest is not resumed
        loader.set_epoch(0)
        assert (loader.epoch, loader.batch) == (0, 3)
        again = make(twenty)
        again.load_state_dict(loader.state_dict())
        assert (again.epoch, again.batch) == (0, 3)
        numbered = [(number, labels.tolist()) for number, (_, labels) in enumerate(again, start=again.batch)]
        assert numbered == [(3, whole[3])]
        assert numbered[-1][0] == len(again) - 1
        assert (again.epoch, again.batch) == (1, 0)


class TestSampler:
    @pytest.mark.parametrize("rank", [0, 1, 2])
    def test_has_this_ranks_indices(self, twenty: FastDataset, rank: int) -> None:
        loader = make(twenty, batch_size=2, rank=rank, world_size=3)
        for epoch in (0, 4):
            loader.sampler.set_epoch(epoch)
            wanted = list(loader.sampler)
            assert len(loader.sampler) == len(wanted) == 7  # of 20
            assert all_labels(loader) == wanted

    def test_kind(self, twenty: FastDataset) -> None:
        """Lightning turns shuffling off for `overfit_batches` unless there is none, and warns of it in validation."""
        for options in ({"shuffle": False}, {"shuffle": False, "order": order.Sequential()}):
            assert isinstance(make(twenty, **options).sampler, SequentialSampler)
        assert not isinstance(make(twenty).sampler, SequentialSampler | RandomSampler)

    def test_training_that_ends_its_epochs_early(self, twenty: FastDataset) -> None:
        """As Lightning calls it for `limit_train_batches`: on every rank, behind the first `iter` and before others."""
        whole = make(twenty, batch_size=3, rank=1, world_size=2)
        epochs = [taken(whole) for _ in range(3)]
        loader = make(twenty, batch_size=3, rank=1, world_size=2)
        batches = iter(loader)
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            batches = iter(loader) if epoch else batches
            assert [labels.tolist() for _, labels in islice(batches, 2)] == epochs[epoch][:2]

    def test_a_state_keeps_its_place(self, twenty: FastDataset) -> None:
        whole = taken(make(twenty))
        for first in ("iter", "set_epoch"):
            loader = make(twenty)
            loader.load_state_dict(loader.state_dict() | {"batch": 2})
            batches = iter(loader) if first == "iter" else None
            loader.sampler.set_epoch(0)
            assert [labels.tolist() for _, labels in batches or loader] == whole[2:]

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_validation_that_is_broken_off_begins_anew(self, twenty: FastDataset, shuffle: bool) -> None:
        """As Lightning calls it for `limit_val_batches`: several times within an epoch of training."""
        loader = make(twenty, batch_size=3, shuffle=shuffle, rank=0, world_size=2)
        loader.sampler.set_epoch(0)
        first = taken(loader, 2)
        loader.sampler.set_epoch(0)
        assert taken(loader, 2) == first
        if shuffle:
            with pytest.raises(StateError, match="would abandon epoch 0"):
                iter(loader)
