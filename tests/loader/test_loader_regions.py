"""A loader's batches are the same whichever way regions are decoded, on every instruction set, by all workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernel_images import jpeg, photo
from loader_sets import digest, write_numbered

from iofast import FastDataset, FastLoader, kernel
from iofast import transforms as T
from iofast.kernel import TranscodeRecipe

SETTINGS = [
    *((way, simd, workers) for way in ("own", "splice", "libjpeg") for simd, workers in (("avx2", 2), ("scalar", 1))),
    *(("own", simd, workers) for simd in ("avx512", "avx2", "scalar") for workers in (1, 4)),
    *((None, simd, 2) for simd in ("avx512", "avx2", "scalar")),
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `iofast pack` writes them, with restart markers of several distances and without."""
    images = []
    for i in range(36):
        recipe = TranscodeRecipe(subsampling=("420", "422", "444")[i % 3], restart=(0, 1, 2, 5, 7, 40)[i // 3 % 6])
        source = jpeg(photo(90 + 11 * i % 200, 70 + 17 * i % 150, i), "L" if i % 7 == 3 else "RGB")
        images.append(kernel.transcode(source, recipe).data)
    return write_numbered(tmp_path_factory.mktemp("regions") / "packed.lmdb", images)


def decoded(path: Path, workers: int) -> tuple[str, set[str]]:
    """SHA-256 of two epochs, and the ways that images took."""
    loader = FastLoader(
        FastDataset(path),
        batch_size=8,
        shuffle=True,
        seed=3,
        num_workers=workers,
        transform=[T.RandomResizedCrop(32), T.RandomHorizontalFlip()],
    )
    batches = [*loader, *loader]
    taken = {way for way, images in loader.stats.ways.items() if images}
    return digest(batches), taken


@pytest.fixture(scope="module")
def wanted(packed: Path) -> str:
    """What libjpeg alone makes of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IOFAST_REGION", "libjpeg")
        found, taken = decoded(packed, 1)
    assert taken == {"libjpeg"}
    return found


@pytest.mark.parametrize("setting", dict.fromkeys(SETTINGS), ids=str)
def test_batches_are_the_same(
    packed: Path, wanted: str, setting: tuple[str | None, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    way, simd, workers = setting
    monkeypatch.setenv("IOFAST_SIMD", simd)
    if way:
        monkeypatch.setenv("IOFAST_REGION", way)
    else:
        monkeypatch.delenv("IOFAST_REGION", raising=False)
    found, taken = decoded(packed, workers)
    assert found == wanted
    if way:
        assert taken == {"own": {"segments", "rows"}, "splice": {"splice", "libjpeg"}, "libjpeg": {"libjpeg"}}[way]


def test_pixels_have_something_to_differ_in(packed: Path) -> None:
    images, _ = next(iter(FastLoader(FastDataset(packed), batch_size=36, transform=[T.RandomResizedCrop(32)])))
    assert torch.unique(images.flatten(1), dim=0).shape[0] == 36
