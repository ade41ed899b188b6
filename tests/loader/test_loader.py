"""FastLoader's batches: the right samples, pixel by pixel, whoever makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo, save
from loader_sets import (
    digest,
    eventually,
    photographs,
    upright,
    workers,
    write_folder,
    write_lmdb,
    write_numbered,
)
from numpy.typing import NDArray
from PIL import Image

from iofast import FastDataset, FastLoader, kernel
from iofast import transforms as T
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.order import Population, Shuffled

N = 40
IMAGES = photographs(N)
UPRIGHT = [upright(data) for data in IMAGES]
AUGMENT = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    yield
    assert eventually(lambda: workers() == 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loader")


@pytest.fixture(scope="module")
def numbered(place: Path) -> FastDataset:
    """Forty photographs whose labels are their numbers."""
    return FastDataset(write_numbered(place / "numbered.lmdb", IMAGES))


@pytest.fixture(scope="module")
def packed(place: Path) -> FastDataset:
    """The same photographs in three classes, in a container …"""
    return FastDataset(write_lmdb(place / "classes.lmdb", IMAGES))


@pytest.fixture(scope="module")
def plain(place: Path) -> FastDataset:
    """… and as plain files."""
    return FastDataset(write_folder(place / "classes", IMAGES))


@pytest.fixture(scope="module")
def same_size(place: Path) -> FastDataset:
    images = [jpeg(photo(48, 36, i)) for i in range(12)]
    return FastDataset(write_numbered(place / "same.lmdb", images))


def labels_of(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    return [label for _, labels in batches for label in labels.tolist()]


def by_pillow(transform: list[T.Transform], seed: int, epoch: int, positions: list[int], order: list[int]) -> Any:
    """The batch that Pillow makes from the same draws, uint8 (N, H, W, 3)."""
    chosen = [UPRIGHT[i] for i in order]
    draw = Draw(seed, epoch, np.array(positions))
    widths, heights = np.array([image.size for image in chosen]).T
    pipeline = T.compile(transform)
    boxes, flips = pipeline.plan(draw, widths, heights)
    size = pipeline.size
    assert size is not None
    made = []
    for image, (x0, y0, x1, y1, width, height, x, y), flip in zip(chosen, boxes.tolist(), flips, strict=True):
        resized = image.crop((x0, y0, x1, y1)).resize((width, height), Image.Resampling.BILINEAR)
        window = resized.crop((x, y, x + size[1], y + size[0]))
        made.append(np.asarray(window.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else window))
    return np.stack(made)


def distance(images: torch.Tensor, expected: NDArray[np.uint8]) -> int:
    return int(np.abs(images.permute(0, 2, 3, 1).numpy().astype(np.int16) - expected).max())


class TestPixels:
    @pytest.mark.parametrize("epoch", [0, 5])
    @pytest.mark.parametrize(
        "transform",
        [AUGMENT, T.evaluate(24)[:2], [T.RandomResizedCrop((20, 31), scale=(0.5, 1.0))]],
        ids=["train", "evaluate", "crop"],
    )
    def test_against_pillow(self, numbered: FastDataset, transform: list[T.Transform], epoch: int) -> None:
        loader = FastLoader(numbered, 7, shuffle=True, seed=9, transform=transform, num_workers=2)
        loader.set_epoch(epoch)
        seen = 0
        for batch, (images, labels) in enumerate(loader):
            positions = list(range(7 * batch, min(7 * batch + 7, N)))
            order = Shuffled().bind(Population(N), 9).indices(epoch, np.array(positions)).tolist()
            assert labels.tolist() == order
            assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
            assert distance(images, by_pillow(transform, 9, epoch, positions, order)) <= 1
            seen += len(labels)
        assert seen == N

    def test_crops_and_flips_are_really_drawn(self, numbered: FastDataset) -> None:
        still = FastLoader(numbered, N, transform=T.evaluate(24)[:2])
        moving = FastLoader(numbered, N, transform=AUGMENT)
        assert digest(still) == digest(still)
        assert digest(moving) != digest(moving)  # another epoch
        flips = [T.RandomResizedCrop(24, scale=(1, 1), ratio=(0.01, 100)), T.RandomHorizontalFlip(1.0)]
        straight, flipped = (FastLoader(numbered, N, transform=flips[:keep]) for keep in (1, 2))
        (a, _), (b, _) = next(iter(straight)), next(iter(flipped))
        assert torch.equal(a, b.flip(3))

    def test_without_a_transform_images_come_whole(self, same_size: FastDataset) -> None:
        (images, labels), *more = FastLoader(same_size, 12)
        assert images.shape == (12, 3, 36, 48)
        assert labels.tolist() == list(range(12))
        assert not more
        expected = np.stack([np.asarray(same_size[i][0]) for i in range(12)])
        assert distance(images, expected) == 0

    def test_formats_mix(self, tmp_path: Path) -> None:
        pixels = [photo(40, 30, i) for i in range(6)]
        kinds = ("jpg", "png", "webp")
        folder = tmp_path / "folder"
        folder.mkdir()
        for i, each in enumerate(pixels):
            data = save(Image.fromarray(each), {"jpg": "JPEG"}.get(kinds[i % 3], kinds[i % 3].upper()))
            (folder / f"{i}.{kinds[i % 3]}").write_bytes(data)
        dataset = FastDataset(folder)
        images, labels = next(iter(FastLoader(dataset, 6)))
        assert labels.tolist() == [-1] * 6
        expected = np.stack([np.asarray(upright((folder / f"{i}.{kinds[i % 3]}").read_bytes())) for i in range(6)])
        assert distance(images, expected) <= 1
        assert (images[1].permute(1, 2, 0).numpy() == pixels[1]).all()  # PNG loses nothing

    @pytest.mark.parametrize("format", [torch.channels_last, torch.contiguous_format])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
    def test_types_and_layouts(self, numbered: FastDataset, dtype: torch.dtype, format: torch.memory_format) -> None:
        options: dict[str, Any] = {"batch_size": 9, "seed": 4, "memory_format": format}
        exact = FastLoader(numbered, 9, seed=4, transform=AUGMENT)
        loader = FastLoader(numbered, transform=AUGMENT, dtype=dtype, **options)
        for (images, _), (levels, _) in zip(loader, exact, strict=True):
            assert images.is_contiguous(memory_format=format)
            assert images.dtype == dtype
            scaled = levels if dtype == torch.uint8 else levels.double() / 255
            assert torch.allclose(images.double(), scaled.double(), rtol=0, atol=PRECISION[dtype])
        if dtype == torch.uint8:
            return
        normalized = FastLoader(numbered, transform=[*AUGMENT, T.Normalize(MEAN, STD)], dtype=dtype, **options)
        mean, std = (torch.tensor(each).double().view(3, 1, 1) for each in (MEAN, STD))
        exact.set_epoch(0)
        for (images, _), (levels, _) in zip(normalized, exact, strict=True):
            assert images.is_contiguous(memory_format=format)
            expected = (levels.double() / 255 - mean) / std
            assert torch.allclose(images.double(), expected, rtol=0, atol=PRECISION[dtype] * 6)

    def test_the_presets(self, numbered: FastDataset) -> None:
        for preset in (T.train(24), T.evaluate(24)):
            images, _ = next(iter(FastLoader(numbered, N, transform=preset, dtype=torch.float32)))
            assert images.view(N, -1).shape == (N, 3 * 24 * 24)  # as a model's first layer may, and DDP's gradients
            levels, _ = next(iter(FastLoader(numbered, N, transform=preset[:-1])))
            expected = (levels.float() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
            assert torch.allclose(images, expected, atol=1e-5)

    def test_fast_pixels_are_only_for_training(self, tmp_path: Path) -> None:
        """Of progressive files, which libjpeg decodes: our own decoder is faster without scaling."""
        images = [jpeg(photo(640, 480, i), progressive=True) for i in range(3)]
        dataset = FastDataset(write_numbered(tmp_path / "large.lmdb", images))
        whole = [T.RandomResizedCrop(24, scale=(0.9, 1.0))]
        for transform, equal in ((T.evaluate(24)[:2], True), (whole, False)):
            exact, fast = (next(iter(FastLoader(dataset, 3, transform=transform, pixels=p))) for p in ("exact", "fast"))
            assert torch.equal(exact[0], fast[0]) is equal or kernel.backend == "python"
            assert (exact[0].float() - fast[0].float()).abs().mean() < 6


PRECISION = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 4e-3, torch.uint8: 0.0}


class TestSameBatches:
    """For one seed: the same bytes whoever computes them."""

    def test_any_number_of_threads_any_depth_any_container(self, packed: FastDataset, plain: FastDataset) -> None:
        def two_epochs(dataset: FastDataset, **options: Any) -> tuple[str, str]:
            loader = FastLoader(dataset, 9, shuffle=True, seed=3, transform=AUGMENT, **options)
            return digest(loader), digest(loader)

        expected = two_epochs(packed, num_workers=1)
        assert expected[0] != expected[1]
        for options in ({"num_workers": 2}, {"num_workers": 5}, {"prefetch": 1}, {"prefetch": 4, "num_workers": 3}):
            assert two_epochs(packed, **options) == expected
        assert two_epochs(plain, num_workers=2) == two_epochs(plain, num_workers=5) == expected
        assert two_epochs(packed, check=None) == expected

    def test_slices_of_large_batches(self, tmp_path: Path) -> None:
        """A batch larger than what a thread takes at once, and not a multiple of it."""
        dataset = FastDataset(write_numbered(tmp_path / "75.lmdb", [IMAGES[i % N] for i in range(75)]))
        parts = FastLoader(dataset, 5, transform=AUGMENT)
        whole = FastLoader(dataset, 75, transform=AUGMENT, num_workers=3)
        assert torch.equal(torch.cat([images for images, _ in parts]), next(iter(whole))[0])

    def test_seeds_and_epochs(self, packed: FastDataset) -> None:
        loader = FastLoader(packed, 8, shuffle=True, seed=1, transform=AUGMENT)
        epochs = [digest(loader) for _ in range(4)]
        assert len(set(epochs)) == 4
        assert loader.epoch == 4
        loader.set_epoch(2)
        assert [digest(loader), digest(loader)] == epochs[2:]
        assert digest(FastLoader(packed, 8, shuffle=True, seed=1, transform=AUGMENT)) == epochs[0]
        assert digest(FastLoader(packed, 8, shuffle=True, seed=2, transform=AUGMENT)) != epochs[0]
        with pytest.raises(OptionError, match=r"epoch must be a whole number .* found -1"):
            loader.set_epoch(-1)

    def test_a_sample_does_not_depend_on_its_batch(self, numbered: FastDataset) -> None:
        for shuffle in (False, True):
            small, large = (FastLoader(numbered, b, shuffle, transform=AUGMENT) for b in (3, 16))
            flat = [torch.cat(column) for column in zip(*small, strict=True)]
            other = [torch.cat(column) for column in zip(*large, strict=True)]
            assert torch.equal(flat[0], other[0])
            assert torch.equal(flat[1], other[1])

    def test_each_iterator_has_its_own_epoch(self, numbered: FastDataset) -> None:
        loader = FastLoader(numbered, 8, shuffle=True, transform=AUGMENT)
        expected = [list(loader), list(loader)]
        loader.set_epoch(0)
        first, second = iter(loader), iter(loader)  # the epoch is taken by iter(), not by the first batch
        for a, b in zip(second, first, strict=True):
            for got, wanted in ((b, expected[0].pop(0)), (a, expected[1].pop(0))):
                assert torch.equal(got[0], wanted[0])
                assert torch.equal(got[1], wanted[1])


class TestSchedule:
    @pytest.mark.parametrize(
        ("batch", "drop", "sizes"), [(16, False, [16, 16, 8]), (16, True, [16, 16]), (40, True, [40])]
    )
    def test_the_last_batch(self, numbered: FastDataset, batch: int, drop: bool, sizes: list[int]) -> None:
        loader = FastLoader(numbered, batch, drop_last=drop, transform=AUGMENT)
        batches = list(loader)
        assert [len(labels) for _, labels in batches] == sizes
        assert len(loader) == len(sizes)
        assert labels_of(batches) == list(range(sum(sizes)))
        assert loader.last_valid is not None
        assert loader.last_valid.tolist() == [True] * sizes[-1]

    def test_shuffling_gives_every_sample_once(self, numbered: FastDataset) -> None:
        loader = FastLoader(numbered, 7, shuffle=True, transform=AUGMENT)
        first, second = labels_of(loader), labels_of(loader)
        assert sorted(first) == sorted(second) == list(range(N))
        assert first != second != list(range(N))

    @pytest.mark.parametrize("drop", [False, True])
    @pytest.mark.parametrize("world", [1, 2, 3, 8])
    def test_ranks_share_the_global_batches(self, numbered: FastDataset, world: int, drop: bool) -> None:
        total = 24 // world * world
        alone = FastLoader(numbered, total, True, seed=5, drop_last=drop, transform=AUGMENT, rank=0, world_size=1)
        ranks = [
            FastLoader(
                numbered, total // world, True, seed=5, drop_last=drop, transform=AUGMENT, rank=r, world_size=world
            )
            for r in range(world)
        ]
        iterators = [iter(loader) for loader in ranks]
        for images, labels in alone:
            parts = [next(iterator) for iterator in iterators]
            valid = [loader.last_valid for loader in ranks]
            assert len({len(part[1]) for part in parts}) == 1
            assert torch.equal(torch.cat([p[0][v] for p, v in zip(parts, valid, strict=True)]), images)
            assert torch.equal(torch.cat([p[1][v] for p, v in zip(parts, valid, strict=True)]), labels)
        assert [next(iterator, None) for iterator in iterators] == [None] * world

    def test_what_fills_the_last_batch_is_marked(self, numbered: FastDataset) -> None:
        loaders = [FastLoader(numbered, 9, transform=AUGMENT, rank=r, world_size=3) for r in range(3)]
        last = [list(loader)[-1][1].tolist() for loader in loaders]  # 40 = 27 + 13, filled to 15
        assert last == [[27, 28, 29, 30, 31], [32, 33, 34, 35, 0], [36, 37, 38, 39, 1]]
        valid = [loader.last_valid.tolist() for loader in loaders if loader.last_valid is not None]
        assert valid == [[True] * 5, [True] * 4 + [False], [True] * 4 + [False]]

    def test_ranks_of_torch_distributed(self, numbered: FastDataset, tmp_path: Path) -> None:
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
        try:
            assert labels_of(FastLoader(numbered, 16, transform=AUGMENT)) == list(range(N))
        finally:
            torch.distributed.destroy_process_group()

    def test_a_split(self, tmp_path: Path) -> None:
        for name, images in (("train", IMAGES[:30]), ("val", IMAGES[30:])):
            write_folder(tmp_path / "nested" / name, images)
        val = FastDataset(tmp_path / "nested", split="val")
        images, _ = next(iter(FastLoader(val, 10, transform=T.evaluate(24)[:2])))
        assert distance(images, by_pillow(T.evaluate(24)[:2], 0, 0, list(range(10)), list(range(30, 40)))) <= 1
