"""A loader with a simulated device, whose pixel work runs in the interpreted Triton passes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from device_decoding import Bench
from device_model import lend
from loader_sets import photographs, write_lmdb

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.loader import Split
from iofast.pixels import dispatch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("with a GPU the loader is tested on it", allow_module_level=True)

from iofast.pixels import triton_geometry, triton_pixels

SIZE = 12
# few taps: the interpreter is slow
CROP: list[Any] = [T.RandomResizedCrop(SIZE, scale=(0.01, 0.1)), T.RandomHorizontalFlip()]
RECIPE: list[Any] = [
    *CROP,
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomGrayscale(0.3),
    T.Normalize.imagenet(),
    T.RandomErasing(0.5, value="random"),
]
MIXED = [*RECIPE, T.CutMix(num_classes=3)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lmdb(tmp_path_factory.mktemp("fused") / "set.lmdb", photographs(4))


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


class Passes:
    """Selects Triton as for a GPU, and records the passes that are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called: list[str] = []
        monkeypatch.setattr(dispatch, "_fused", lambda data: True)
        for name, module, function in (("geometry", triton_geometry, "resample"), ("pixels", triton_pixels, "apply")):
            monkeypatch.setattr(module, function, self._noting(name, getattr(module, function)))

    def _noting(self, name: str, function: Any) -> Any:
        def noted(*given: Any, **options: Any) -> Any:
            self.called.append(name)
            return function(*given, **options)

        return noted


def loader(place: Path, transform: list[Any], batch_size: int = 2, **options: Any) -> FastLoader:
    shared: dict[str, Any] = {"num_workers": 1, "shuffle": True, "transform": transform}
    return FastLoader(FastDataset(place), batch_size, **shared, **options)


def compare(own: FastLoader, expected: list[Any], exact: bool) -> None:
    for (images, labels), (wanted, theirs) in zip(own, expected, strict=True):
        assert torch.equal(labels, theirs)
        for image, one in zip(images, wanted, strict=True):
            assert image.dtype == one.dtype
            assert image.stride() == one.stride()
            torch.testing.assert_close(image, one, rtol=0, atol=0 if exact else 1e-5)


@pytest.mark.parametrize(
    ("transform", "options", "passes"),
    [
        (RECIPE, {}, ["pixels"]),
        (MIXED, {"memory_format": torch.contiguous_format}, ["pixels"]),
        (CROP, {"dtype": torch.float16}, ["pixels"]),
        ([T.Resize(9), *RECIPE[2:]], {"ragged": "list"}, ["pixels"] * 2),
        ([T.Resize(9), *RECIPE[2:]], {"ragged": "pad", "memory_format": torch.contiguous_format}, ["pixels"] * 2),
    ],
    ids=["colours", "mixed", "half", "list", "pad"],
)
def test_images_decoded_on_the_cpu(
    place: Path, monkeypatch: pytest.MonkeyPatch, transform: list[Any], options: dict[str, Any], passes: list[str]
) -> None:
    options = {"dtype": torch.float32, **options}
    expected = [(list(images), labels) for images, labels in loader(place, transform, **options)]
    fused, own = Passes(monkeypatch), loader(place, transform, **options)
    lend(own)
    compare(own, expected, exact=options["dtype"] == torch.float16 and transform is CROP)
    assert fused.called == 2 * passes


@pytest.mark.parametrize(
    ("transform", "options", "passes"),
    [
        (CROP, {"dtype": torch.uint8}, ["geometry"]),
        ([*CROP, T.Normalize.imagenet()], {"memory_format": torch.contiguous_format}, ["geometry"]),
        (MIXED, {}, ["geometry", "pixels"]),
    ],
    ids=["plain", "normalised", "mixed"],
)
def test_images_cached_on_the_device(
    place: Path, monkeypatch: pytest.MonkeyPatch, transform: list[Any], options: dict[str, Any], passes: list[str]
) -> None:
    options = {"dtype": torch.float32, "cache": "device", **options}
    expected = list(loader(place, transform, **options))
    fused, own = Passes(monkeypatch), loader(place, transform, **options)
    lend(own)
    compare(own, expected, exact=options["dtype"] == torch.uint8)
    assert fused.called == 2 * passes


@pytest.mark.parametrize("how", ["gpu", Split(0.5)], ids=["gpu", "split"])
def test_images_decoded_on_the_device(place: Path, monkeypatch: pytest.MonkeyPatch, how: Any) -> None:
    """Compared with torch instead of Triton."""
    bench = Bench(monkeypatch)
    made = []
    for passes in (None, Passes):
        fused = passes and passes(monkeypatch)
        own = bench.there(place, 2, decode=how, num_workers=1, transform=RECIPE, dtype=torch.float32, shuffle=True)
        made.append(list(own))
        assert own.stats.ways["device"] > 0
    assert fused is not None
    assert fused.called.count("pixels") == 2
    assert fused.called[:2] == ["geometry", "pixels"]  # the device may decode nothing of the second batch
    for (images, labels), (expected, theirs) in zip(*made, strict=True):
        assert torch.equal(labels, theirs)
        torch.testing.assert_close(images, expected, rtol=0, atol=1e-5)


def test_images_with_too_many_pixels_for_a_gpu_use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = Passes(monkeypatch)
    monkeypatch.setattr(dispatch, "_MOST", 8 * 8)
    for side, passes in ((8, ["pixels"]), (9, [])):
        fused.called.clear()
        images = torch.full((1, 3, side, side), 51, dtype=torch.uint8)
        assert dispatch.apply(images)[0, 0, 0, 0] == pytest.approx(0.2)
        assert fused.called == passes
