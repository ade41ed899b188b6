"""Messages: options of any type are refused in one line, errors of user functions name the batch."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler

from iofast import FastDataset, FastLoader, order
from iofast import transforms as T
from iofast.errors import IofastError, OptionError, StateError, shown
from iofast.loader import LoaderOptions
from iofast.meter import watch

RESIZE = [T.Resize((8, 8))]


@pytest.fixture(scope="module")
def dataset(place: Path) -> FastDataset:
    return FastDataset(place / "numbered.lmdb", indices=range(12))


class Odd:
    """Raises in every comparison."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    def __repr__(self) -> str:
        return "odd\nin two lines"


class Unspeakable(Odd):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


VALUES: list[Any] = [
    np.array([1, 2]),
    np.zeros((30, 30)),
    np.array(1.5),
    np.array(["raise", "drop"]),
    torch.tensor([1.0], requires_grad=True),
    {1: print, "a": print},
    [1, None],
    [["image"]],
    "something",
    float("nan"),
    1 << 200,
    -1,
    Odd(),
    Unspeakable(),
]
IDS = [type(value).__name__ + str(number) for number, value in enumerate(VALUES)]
WITH = {"rank": {"world_size": 2}, "world_size": {"rank": 0}, "max_errors": {"on_error": "drop"}}


def refused(attempt: Callable[[], object]) -> None:
    """Check that `attempt` succeeds, or raises an error of one line."""
    message = ""
    try:
        attempt()
    except IofastError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 600


@pytest.mark.parametrize("value", VALUES, ids=IDS)
class TestValuesOfAnyType:
    def test_options_of_a_loader(self, dataset: FastDataset, value: Any) -> None:
        for each in fields(LoaderOptions):
            options: dict[str, Any] = {"transform": RESIZE, each.name: value} | WITH.get(each.name, {})
            refused(lambda options=options: next(iter(FastLoader(dataset, **options))))  # type: ignore[misc]

    def test_options_of_a_dataset(self, dataset: FastDataset, value: Any) -> None:
        path = dataset.path
        refused(lambda: FastDataset(value))
        for name in ("split", "transform", "target_transform", "indices", "fields", "orientation", "foreign", "filter"):
            refused(lambda name=name: FastDataset(path, **{name: value}))  # type: ignore[misc]
        refused(lambda: FastDataset(path, filter=lambda _: value))

    def test_orders(self, dataset: FastDataset, value: Any) -> None:
        kinds: list[Callable[..., Any]] = [
            *(order.Blocks, order.Weighted, order.Balanced, order.Repeated, order.Mixed, order.Buckets, order.Grouped),
            *(order.Sampled, lambda value: order.Blocks(4, value), lambda value: order.Repeated(2, value)),
            *(lambda value: order.Mixed([1], value), lambda value: order.Grouped(1, value)),
            *(lambda value: order.Buckets([value]), lambda value: order.Buckets([(value, value)])),
        ]
        for make in kinds:
            refused(lambda make=make: next(iter(FastLoader(dataset, order=make(value), transform=RESIZE))))  # type: ignore[misc]

    def test_epochs_and_states(self, dataset: FastDataset, value: Any) -> None:
        sampler = torch.utils.data.DistributedSampler(dataset, 1, 0)  # seeds torch's generator with the epoch
        loader = FastLoader(dataset, transform=RESIZE, order=sampler)
        refused(lambda: loader.set_epoch(value))
        loader.set_epoch(0)
        refused(lambda: loader.load_state_dict(value))
        for name in loader.state_dict():
            with pytest.raises(StateError) as caught:
                loader.load_state_dict(loader.state_dict() | {name: value})
            assert "\n" not in str(caught.value)

    def test_meters(self, value: Any) -> None:
        refused(lambda: list(watch([1], name=value)))
        refused(lambda: list(watch([1], device=value)))


def test_values_of_numpy_become_plain(dataset: FastDataset) -> None:
    loader = FastLoader(dataset, np.int64(4), np.True_, on_error=np.str_("drop"), readahead=np.False_, transform=RESIZE)  # type: ignore[arg-type]
    assert (type(loader.options.on_error), loader.options.readahead) == (str, False)
    assert len(list(loader)) == 3


def test_shown() -> None:
    assert shown(np.zeros((50, 50))).endswith("…")
    assert len(shown("x" * 1000)) == 80
    assert shown("x" * 200, most=300) == repr("x" * 200)
    assert shown(Odd()) == "odd in two lines"
    assert shown(Unspeakable()) == "<Unspeakable>"


def test_repeated_says_how_to_repeat_a_sampler(dataset: FastDataset) -> None:
    with pytest.raises(OptionError, match=r"found <torch.*RandomSampler.*write Repeated\(2, Sampled\(RandomSampler"):
        order.Repeated(2, RandomSampler(range(12)))  # type: ignore[arg-type]


FAULTS: list[tuple[dict[str, Any], str]] = [  # in a decoding thread, and in the consumer's where batches go to a device
    ({"map_batch": True}, "in map_batch: batch 2 of epoch 5"),
    ({"map_batch": True, "device": "meta"}, "in map_batch: batch 2 of epoch 5"),
    ({"collate": True}, "in collate['key']: batch 2 of epoch 5"),
    ({"collate": True, "map_sample": lambda sample, rng: sample}, "in collate['key']: batch 2 of epoch 5"),
]


@pytest.mark.parametrize(("options", "note"), FAULTS)
def test_notes_name_the_batch_and_the_epoch(dataset: FastDataset, options: dict[str, Any], note: str) -> None:
    calls = iter(range(9))

    def fails_at_third(batch: Any) -> Any:
        if next(calls) == 2:
            raise KeyError("boxes")
        return batch

    function: Any = {"map_batch": fails_at_third} if "map_batch" in options else {"collate": {"key": fails_at_third}}
    fields = FastDataset(dataset.path, fields=["image", "label", "key"], indices=range(12))
    loader = FastLoader(fields, 4, transform=RESIZE, num_workers=1, prefetch=1, **options | function)
    loader.set_epoch(5)
    with pytest.raises(KeyError) as caught:
        list(loader)
    assert caught.value.__notes__ == [note]


def test_a_look_ahead_has_such_a_note(dataset: FastDataset) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        FastLoader(dataset, 4, transform=RESIZE, map_batch=lambda batch: 1 // 0).peek()
    assert caught.value.__notes__ == ["in map_batch: batch 0 of epoch 0"]
