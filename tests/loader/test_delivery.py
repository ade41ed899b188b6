"""A loader whose batches go to a device, on a model of one: the same batches, in a thread of their own, ahead."""

import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device_model import Device, lend
from loader_sets import check_equal, digest, eventually

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import DecodeError, StateError
from iofast.loader import delivery
from iofast.loader.delivery import AHEAD, _copied, on_device
from iofast.meter.clock import Pass

CROP: dict[str, Any] = {"transform": [T.RandomResizedCrop(24), T.RandomHorizontalFlip()], "shuffle": True}
COLOURS: dict[str, Any] = {
    "transform": [T.RandomResizedCrop(24), T.ColorJitter(0.4, 0.4), T.Normalize.imagenet()],
    "dtype": torch.float32,
}
NORMALIZED: dict[str, Any] = {"transform": [T.Normalize.imagenet()], "dtype": torch.float32}
FIELDS = ["image", "label", "key", "index"]


def halved(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    return sample | {"image": sample["image"] / 2}


def there(place: Path, fields: list[str] | None = None, name: str = "set.lmdb", **options: Any) -> FastLoader:
    """A loader whose device is the model."""
    loader = here(place, fields, name, **options)
    lend(loader)
    return loader


def here(place: Path, fields: list[str] | None = None, name: str = "set.lmdb", **options: Any) -> FastLoader:
    return FastLoader(FastDataset(place / name, fields=fields), 4, num_workers=2, **options)


def model(loader: FastLoader) -> Device:
    return loader._resources.transfer._streams  # type: ignore[union-attr, return-value]


CASES: dict[str, dict[str, Any]] = {
    "colours": COLOURS,
    "list": {"fields": FIELDS, "ragged": "list", **NORMALIZED},
    "padded": {"fields": FIELDS, "ragged": "pad", **NORMALIZED},
    "views": {"transform": T.Views(a=(2, CROP["transform"]), b=[T.CenterCrop(16)])},
    "collated to a tensor": {"collate": {"image": torch.stack}, **CROP},
    "collated to a list": {"collate": {"image": list}, **CROP},
    "mapped": {"map_sample": halved, **CROP},
}


class TestTheSameBatches:
    @pytest.mark.parametrize("case", CASES)
    def test_as_on_the_cpu(self, place: Path, case: str) -> None:
        own, other = there(place, **CASES[case]), here(place, **CASES[case])
        for _ in range(2):
            check_equal(own, other)

    def test_with_auto_workers(self, place: Path) -> None:
        own, other = (FastLoader(FastDataset(place / "set.lmdb"), 1, **CROP) for _ in range(2))
        lend(own)
        check_equal(own, other)

    def test_map_batch_gets_it_in_the_consumers_thread(self, place: Path) -> None:
        seen = []

        def function(batch: Any) -> Any:
            seen.append((threading.current_thread(), model(loader).current().name))
            return batch

        loader = there(place, map_batch=function, **CROP)
        assert len(list(loader)) == 10
        assert set(seen) == {(threading.current_thread(), "default")}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, weakref.ref[torch.Tensor]]]:
    """Thread, stream and host memory of each batch that goes to the device."""
    seen = list[tuple[str, str, weakref.ref[torch.Tensor]]]()

    def noted(parts: Any, made: Any, bus: Any) -> Any:
        stream = parts.resources.transfer._streams.current().name
        seen.append((threading.current_thread().name, stream, weakref.ref(made.batch[0])))
        return on_device(parts, made, bus)

    monkeypatch.setattr(delivery, "on_device", noted)
    return seen


def test_one_thread_works_so_far_ahead(place: Path, watched: list[Any]) -> None:
    batches = iter(there(place, **CROP))
    for number in range(1, 4):
        next(batches)
        assert eventually(lambda number=number: len(watched) == number + AHEAD)  # type: ignore[misc]
    assert {each[:2] for each in watched} == {("iofast-device-0", "side")}
    assert eventually(lambda: not any(host() is not None for *_, host in watched))
    batches.close()  # type: ignore[attr-defined]
    assert len(watched) == 3 + AHEAD


def test_errors_come_in_their_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(9))
    faults = {1: ValueError("a fault of the device")}

    def failing(*given: Any) -> Any:
        if error := faults.get(next(calls)):
            raise error
        return on_device(*given)

    for name, words in (("broken.lmdb", "and 1 more of this batch"), ("set.lmdb", "a fault of the device")):
        batches = iter(there(place, name=name, transform=CROP["transform"]))
        next(batches)
        with pytest.raises((ValueError, DecodeError), match=words):
            next(batches)
        assert next(batches, None) is None
        monkeypatch.setattr(delivery, "on_device", failing)


def test_failures_count_when_their_batch_is_handed_over(place: Path) -> None:
    loader = there(place, name="broken.lmdb", on_error="replace", transform=CROP["transform"])
    batches = iter(loader)
    found = [len(loader.failures)]
    for _ in range(3):
        next(batches)
        found.append(len(loader.failures))
    assert found[:2] == [0, 0]
    assert found[2] == found[3] == loader.stats.errors >= 2


def test_a_state_does_not_count_what_is_ahead(place: Path) -> None:
    loader = there(place, **CROP)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    assert state["batch"] == 3
    rest = digest(batches)
    other = here(place, **CROP)
    other.load_state_dict(state)
    assert digest(other) == rest


@pytest.mark.parametrize("cache", [None, "device"])
def test_a_capture_takes_no_batch(place: Path, cache: Any) -> None:
    """And is not broken by a first use."""
    loader, expected = there(place, cache=cache, **CROP), digest(here(place, cache=cache, **CROP))
    device = model(loader)
    for first in (True, False):
        device.is_capturing = True
        batches = iter(loader)
        with pytest.raises(StateError, match="while a CUDA graph is captured"):
            next(batches)
        assert not first or (device.began, device.blocks(), loader._resident) == (False, 0, None)
        device.is_capturing = False
        loader.set_epoch(0)
        assert digest(loader) == expected
        loader.set_epoch(0)


def test_the_stall_clock_encloses_the_wait(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`waiting` and `got` enclose the wait of the consumer's stream for the device; `arrived` comes before it."""
    loader, calls = there(place, **CROP), list[str]()

    def note(owner: Any, name: str) -> None:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (calls.append(name), function(*given))[1])

    for name in ("waiting", "began", "arrived", "got", "left"):
        note(Pass, name)
    note(model(loader), "wait")
    assert len(list(loader)) == 10
    assert calls == ["waiting", "began", *["waiting", "arrived", "wait", "got"] * 10, "waiting", "left"]


def test_copies_are_counted(place: Path) -> None:
    loader = there(place, **CROP)
    list(loader)
    transfer = loader.stats.stages["transfer"]
    assert (transfer.items, transfer.bytes) == (10, 40 * (24 * 24 * 3 + 8))
    assert transfer.work_s > 0


def sized(place: Path, name: str = "set.lmdb", ragged: Any = "list", **options: Any) -> FastLoader:
    return FastLoader(FastDataset(place / name), 8, num_workers=2, shuffle=True, ragged=ragged, **options)


def copies_of(loader: FastLoader) -> list[torch.Tensor]:
    """What the loader's device will have copied."""
    device, copied = lend(loader), list[torch.Tensor]()
    copy = device.copy
    device.copy = lambda tensor: (copied.append(tensor), copy(tensor))[1]  # type: ignore[method-assign]
    return copied


@pytest.mark.parametrize(("ragged", "layout"), [("list", torch.channels_last), ("pad", torch.contiguous_format)])
def test_a_batch_is_two_copies(place: Path, ragged: str, layout: Any) -> None:
    """Its images, and its labels."""
    steps = [T.Resize(20), T.ColorJitter(0.4, 0.4), T.Normalize.imagenet()]
    for more in ({}, {"transform": steps, "dtype": torch.float32}):
        own, other = (sized(place, memory_format=layout, ragged=ragged, **more) for _ in range(2))
        copied = copies_of(own)
        check_equal(own, other)
        assert len(copied) == 2 * len(own)


@pytest.mark.parametrize("action", ["replace", "drop"])
def test_replaced_and_dropped_samples(place: Path, action: Any) -> None:
    """A replacement has memory of its own, and a dropped image leaves a hole."""
    own, other = (sized(place, "broken.lmdb", on_error=action) for _ in range(2))
    copied = copies_of(own)
    check_equal(own, other)
    assert own.stats.errors == other.stats.errors > 0
    assert 2 * len(own) <= len(copied) <= 2 * len(own) + own.stats.errors


def test_images_of_a_users_function(place: Path) -> None:
    """Some in memory of their own, some as they were."""

    def function(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {**sample, "image": sample["image"] // 2} if sample["image"].shape[1] % 2 else sample

    own, other = (sized(place, map_sample=function) for _ in range(2))
    lend(own)
    check_equal(own, other)


def test_one_image_of_a_block_is_copied_alone() -> None:
    block, sizes = torch.arange(60, dtype=torch.uint8), list[int]()
    bus: Any = SimpleNamespace(copy=lambda all: [sizes.append(each.nbytes) or each.clone() for each in all])
    (copied,) = _copied(bus, [block[:36].view(3, 4, 3)])
    assert torch.equal(copied, block[:36].view(3, 4, 3))
    assert sizes == [36]
