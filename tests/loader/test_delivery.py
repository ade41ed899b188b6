"""A loader whose batches go to a device, on a model of one: the same batches, in a thread of their own, ahead."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
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
    "crop": CROP,
    "colours": COLOURS,
    "bfloat16": {"dtype": torch.bfloat16, **CROP},
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

    def test_a_list_of_images_of_a_users_function_is_copied(self, place: Path) -> None:
        loader = there(place, **CASES["collated to a list"])
        for images, _ in loader:
            owners = model(loader).device_memory.held
            assert all(image.untyped_storage().data_ptr() in owners for image in images)

    def test_with_auto_workers(self, place: Path) -> None:
        own, other = (FastLoader(FastDataset(place / "set.lmdb"), 1, **CROP) for _ in range(2))
        lend(own)
        check_equal(own, other)
        assert own._auto is not None

    def test_map_batch_gets_it_in_the_consumers_thread(self, place: Path) -> None:
        seen = []

        def function(batch: Any) -> Any:
            seen.append((threading.current_thread(), model(loader).current().name))
            return batch

        loader = there(place, map_batch=function, **CROP)
        assert len(list(loader)) == 10
        assert set(seen) == {(threading.current_thread(), "default")}


class Watched:
    """Records calls of `on_device`, and raises in call `fails_at`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: int | None = None) -> None:
        self.threads: set[str] = set()
        self.streams: set[str] = set()
        self.count, self.fails_at = 0, fails_at
        self.hosts: list[weakref.ref[torch.Tensor]] = []
        monkeypatch.setattr(delivery, "on_device", self)

    def __call__(self, parts: Any, made: Any, bus: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        self.streams.add(parts.resources.transfer._streams.current().name)
        self.count += 1
        self.hosts.append(weakref.ref(made.batch[0]))
        if self.count == self.fails_at:
            raise ValueError("a fault of the device")
        return on_device(parts, made, bus)


def test_one_thread_works_so_far_ahead(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    batches = iter(there(place, **CROP))
    for number in range(1, 4):
        next(batches)
        assert eventually(lambda number=number: watched.count == number + AHEAD)  # type: ignore[misc]
    assert watched.threads == {"iofast-device-0"}
    assert watched.streams == {"side"}
    assert eventually(lambda: not any(reference() is not None for reference in watched.hosts))
    batches.close()  # type: ignore[attr-defined]
    assert watched.count == 3 + AHEAD


@pytest.mark.parametrize("cause", ["device", "sample"])
def test_errors_come_in_their_place(place: Path, monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    options = {"name": "broken.lmdb", "transform": CROP["transform"]} if cause == "sample" else CROP
    watched = Watched(monkeypatch, fails_at=2 if cause == "device" else None)
    batches = iter(there(place, **options))
    next(batches)
    with pytest.raises((ValueError, DecodeError), match=r"a fault of the device|and 1 more of this batch"):
        next(batches)
    assert next(batches, None) is None
    assert watched.count >= 1


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
    again, other = there(place, **CROP), here(place, **CROP)
    for each in (again, other):
        each.load_state_dict(state)
        assert digest(each) == rest


def test_a_capture_takes_no_batch(place: Path) -> None:
    loader = there(place, **CROP)
    expected = digest(here(place, **CROP))
    batches = iter(loader)
    begun = [next(batches)]
    model(loader).is_capturing = True
    with pytest.raises(StateError, match="while a CUDA graph is captured"):
        next(batches)
    model(loader).is_capturing = False
    loader.set_epoch(0)
    assert digest([*begun, *loader]) == expected


@pytest.mark.parametrize("cache", [None, "device"])
def test_a_capture_is_not_broken_by_a_first_use(place: Path, cache: Any) -> None:
    loader = there(place, cache=cache, **CROP)
    device = model(loader)
    device.is_capturing = True
    with pytest.raises(StateError, match="while a CUDA graph is captured"):
        next(iter(loader))
    assert not device.began
    assert device.blocks() == 0
    assert loader._resident is None
    device.is_capturing = False
    loader.set_epoch(0)
    assert digest(loader) == digest(here(place, cache=cache, **CROP))


def test_the_stall_clock_encloses_the_wait(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`waiting` and `got` enclose the wait of the consumer's stream for the device; `arrived` comes before it."""
    loader, calls = there(place, **CROP), list[str]()
    device, begin = model(loader), loader.clock.begin

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            calls.append(name)
            return function(*given)

        return noted

    def begun(epoch: int) -> Any:
        timing = begin(epoch)
        names = "waiting", "began", "arrived", "got", "left"
        return type("Noted", (), {name: staticmethod(noting(name, getattr(timing, name))) for name in names})

    monkeypatch.setattr(loader.clock, "begin", begun)
    monkeypatch.setattr(device, "wait", noting("wait", device.wait))
    assert len(list(loader)) == 10
    assert calls == ["waiting", "began", *["waiting", "arrived", "wait", "got"] * 10, "waiting", "left"]


def test_copies_are_counted(place: Path) -> None:
    loader = there(place, **CROP)
    list(loader)
    transfer = loader.stats.stages["transfer"]
    assert transfer.items == 10
    assert transfer.bytes == 40 * (24 * 24 * 3 + 8)
    assert transfer.work_s > 0


RESIZED: dict[str, Any] = {
    "transform": [T.Resize(20), T.ColorJitter(0.4, 0.4), T.Normalize.imagenet()],
    "dtype": torch.float32,
}


def sized(place: Path, name: str = "set.lmdb", ragged: Any = "list", **options: Any) -> FastLoader:
    return FastLoader(FastDataset(place / name), 8, num_workers=2, shuffle=True, ragged=ragged, **options)


class Counting:
    """Counts the copies of a device."""

    def __init__(self, device: Device) -> None:
        self.copy, self.count = device.copy, 0
        device.copy = self  # type: ignore[method-assign, assignment]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.copy(tensor)


@pytest.mark.parametrize("ragged", ["list", "pad"])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=["last", "first"])
@pytest.mark.parametrize("options", [{}, RESIZED], ids=["plain", "colours"])
def test_a_batch_is_two_copies(place: Path, ragged: str, layout: Any, options: dict[str, Any]) -> None:
    """Its images, and its labels."""
    options = {"memory_format": layout, "ragged": ragged, **options}
    own, other = sized(place, **options), sized(place, **options)
    copies = Counting(lend(own))
    check_equal(own, other)
    assert copies.count == 2 * len(own)


@pytest.mark.parametrize("action", ["replace", "drop"])
def test_replaced_and_dropped_samples(place: Path, action: Any) -> None:
    """A replacement has memory of its own, and a dropped image leaves a hole."""
    own, other = (sized(place, "broken.lmdb", on_error=action) for _ in range(2))
    copies = Counting(lend(own))
    check_equal(own, other)
    assert own.stats.errors == other.stats.errors > 0
    assert 2 * len(own) <= copies.count <= 2 * len(own) + own.stats.errors


def test_images_of_a_users_function(place: Path) -> None:
    """Some in memory of their own, some as they were."""

    def function(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {**sample, "image": sample["image"] // 2} if sample["image"].shape[1] % 2 else sample

    own, other = (sized(place, map_sample=function) for _ in range(2))
    lend(own)
    check_equal(own, other)


class TestWhatIsCopied:
    """`_copied` by itself, with a bus that records the sizes of copies."""

    class Bus:
        device = torch.device("cpu")

        def __init__(self) -> None:
            self.nbytes: list[int] = []

        def copy(self, tensors: Any) -> list[torch.Tensor]:
            self.nbytes += [tensor.nbytes for tensor in tensors]
            return [tensor.clone() for tensor in tensors]

    @pytest.mark.parametrize(
        ("rows", "nbytes"), [([0, 1], [60]), ([1, 0], [60]), ([0], [36]), ([1], [24]), ([], []), ([0, 0], [60])]
    )
    def test_a_block_or_a_small_part_of_it(self, rows: list[int], nbytes: list[int]) -> None:
        block = torch.arange(60, dtype=torch.uint8)
        images = [block[:36].view(3, 4, 3).permute(2, 0, 1), block[36:].view(2, 4, 3).permute(2, 0, 1)]
        bus = self.Bus()
        made = _copied(bus, [images[row] for row in rows])
        assert bus.nbytes == nbytes
        for image, row in zip(made, rows, strict=True):
            assert torch.equal(image, images[row])
            assert image.stride() == images[row].stride()
            assert image.untyped_storage().data_ptr() != block.data_ptr()
