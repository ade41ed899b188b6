"""Batches whose JPEGs the device decodes equal those of the CPU: pixels, failures, states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_model import decode_there, lend
from loader_sets import photographs, with_markers, write_numbered

from iofast import FastDataset, FastLoader, open_writer
from iofast import transforms as T
from iofast.errors import StorageError
from iofast.loader import filling
from iofast.loader.resources import decode_obstacles

CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
COLOURS = [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.Normalize.imagenet(), T.RandomErasing(0.5)]
N = 40


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("there") / "packed.lmdb", with_markers(N))


def there(dataset: FastDataset, batch_size: int = 8, *, workers: int = 2, **options: Any) -> FastLoader:
    loader = FastLoader(dataset, batch_size, num_workers=workers, **options)
    lend(loader)
    decode_there(loader)
    return loader


def same(own: FastLoader, other: FastLoader, epochs: int = 1) -> None:
    for _ in range(epochs):
        for (images, labels), (expected, theirs) in zip(own, other, strict=True):
            assert torch.equal(labels, theirs)
            assert images.dtype == expected.dtype
            assert torch.equal(images, expected)
    assert own.failures == other.failures


CASES: dict[str, dict[str, Any]] = {
    "crop": {"transform": CROP},
    "colours": {"transform": [*CROP, *COLOURS], "dtype": torch.float32},
    "mixed": {"transform": [*CROP, *COLOURS, T.CutMix(num_classes=N)], "dtype": torch.bfloat16},
    "window": {"transform": [T.RandomCrop((24, 20)), T.RandomHorizontalFlip()]},
    "evaluation": {"transform": [T.Resize(32), T.CenterCrop(24)]},
    "gray": {"transform": CROP, "image_mode": "L"},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_the_cpu(packed: Path, case: str, workers: int) -> None:
    dataset = FastDataset(packed)
    options: dict[str, Any] = {"shuffle": True, "seed": 5, **CASES[case]}
    own = there(dataset, workers=workers, **options)
    same(own, FastLoader(dataset, 8, num_workers=2, **options), 2)
    assert own.stats.ways["device"] > N


@pytest.mark.parametrize("case", ["crop", "mixed", "window", "evaluation"])
def test_jpegs_in_device_memory(packed: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cache="device"` keeps them as they are; pixels, also of those without restart markers, are the CPU's."""
    monkeypatch.setattr(filling, "PART", 30_000)
    monkeypatch.setattr(filling, "GAIN", 0)
    dataset = FastDataset(packed)
    options: dict[str, Any] = {"shuffle": True, "seed": 5, **CASES[case]}
    own = FastLoader(dataset, 8, num_workers=2, cache="device", **options)
    lend(own)
    same(own, FastLoader(dataset, 8, num_workers=2, **options), 2)
    assert own.stats.decode == "on the device, which has the JPEGs"
    resident = own._resident
    assert resident is not None
    assert resident.jpegs is not None
    assert 0.5 < (resident.jpegs.files["width"] > 0).mean() < 1
    assert resident.data.numel() < 3 * sum(int(size) for size in resident.sizes.prod(axis=1))


@pytest.mark.parametrize("on_error", ["replace", "drop"])
def test_damage_is_the_cpus_to_judge(tmp_path: Path, packed: Path, on_error: Any) -> None:
    """Every seventh JPEG has wrong bytes where its markers do not show it."""
    rng, files = np.random.default_rng(3), []
    for row in range(N):
        data = bytearray(FastDataset(packed).reader.view(row))
        if row % 7 == 1:
            middle = len(data) // 2
            data[middle : middle + 40] = rng.integers(0, 255, 40, np.uint8).tobytes()
        files.append(bytes(data))
    dataset = FastDataset(write_numbered(tmp_path / "damaged.lmdb", files))
    options: dict[str, Any] = {"transform": [*CROP, *COLOURS], "dtype": torch.float32, "on_error": on_error, "seed": 1}
    for workers in (0, 2):
        own, other = there(dataset, workers=workers, **options), FastLoader(dataset, 8, num_workers=2, **options)
        same(own, other)
        assert own.failures
    cached = FastLoader(dataset, 8, num_workers=2, cache="device", **options)
    lend(cached)
    cached.peek()
    failed = cached._resident.failed  # type: ignore[union-attr]
    whole = FastLoader(dataset, 8, num_workers=2, **{**options, "transform": [T.Resize((24, 24)), *COLOURS]})
    list(whole)
    assert failed
    assert {failure.name for failure in whole.failures} <= {dataset.reader.name(row) for row in failed}


def test_the_cpu_decodes_what_a_device_would_mostly_leave_to_it(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the CPU decoded photographs one by one beside the device, at a third of its usual rate."""
    originals = write_numbered(tmp_path / "originals.lmdb", photographs(N))
    raw = tmp_path / "raw.lmdb"
    with open_writer(raw) as writer:
        for number in range(N):
            writer.write({"rgb": bytes(3 * 30 * 40), "cls": number, "json": {"width": 40, "height": 30}})

    def loader(path: Path, decode: Any = "auto") -> FastLoader:
        return FastLoader(FastDataset(path), 8, transform=CROP, decode=decode)

    for path in (originals, raw):
        assert "restart markers" in next(iter(decode_obstacles(loader(path)._spec)))
        assert list(decode_obstacles(loader(path, "cpu")._spec)) == []
    good = loader(packed)
    assert list(decode_obstacles(good._spec)) == []

    def late(*_: Any) -> None:
        raise StorageError("503 slow down")

    monkeypatch.setattr(good.dataset.reader, "payloads", late)  # the batch of an unreadable image has its error
    assert list(decode_obstacles(good._spec)) == []
