"""FastLoader's batches: the right samples, pixel by pixel, with any number of threads and ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo, save
from loader_sets import all_labels, digest, photographs, upright, write_numbered
from numpy.typing import NDArray
from PIL import Image

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.choices import Draw
from iofast.order import Population, Shuffled

N = 40
IMAGES = photographs(N)
UPRIGHT = [upright(data) for data in IMAGES]
AUGMENT = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
PRECISION = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 4e-3, torch.uint8: 1e-9}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def by_pillow(transform: list[T.Transform], seed: int, epoch: int, positions: list[int], order: list[int]) -> Any:
    """The batch of Pillow from the same draws, uint8 (N, H, W, 3)."""
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

    def test_without_a_transform_images_come_whole(self, tmp_path: Path) -> None:
        """Also of several formats, in files without labels."""
        images = [photo(40, 30, i) for i in range(6)]
        for i, each in enumerate(images):
            kind, suffix = (("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"))[i % 3]
            (tmp_path / f"{i}.{suffix}").write_bytes(save(Image.fromarray(each), kind))
        dataset = FastDataset(tmp_path)
        (found, labels), *more = FastLoader(dataset, 6)
        assert (found.shape, labels.tolist(), more) == ((6, 3, 30, 40), [-1] * 6, [])
        assert distance(found, np.stack([np.asarray(dataset[i][0]) for i in range(6)])) == 0
        expected = np.stack([np.asarray(upright(path.read_bytes())) for path in sorted(tmp_path.iterdir())])
        assert distance(found, expected) <= 1
        assert (found[1].permute(1, 2, 0).numpy() == images[1]).all()  # PNG loses nothing

    @pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
    @pytest.mark.parametrize("dtype", PRECISION)
    def test_types_and_layouts(self, numbered: FastDataset, dtype: torch.dtype, layout: torch.memory_format) -> None:
        mean, std = (torch.tensor(each).double().view(3, 1, 1) for each in (MEAN, STD))
        exact = [levels.double() / 255 for levels, _ in FastLoader(numbered, 9, seed=4, transform=AUGMENT)]
        whole = 255 if dtype == torch.uint8 else 1
        cases = [(AUGMENT, [whole * levels for levels in exact], PRECISION[dtype])]
        if dtype != torch.uint8:
            expected = [(levels - mean) / std for levels in exact]
            cases.append(([*AUGMENT, T.Normalize(MEAN, STD)], expected, 6 * PRECISION[dtype]))
        for transform, batches, tolerance in cases:
            loader = FastLoader(numbered, 9, seed=4, transform=transform, dtype=dtype, memory_format=layout)
            for (images, _), wanted in zip(loader, batches, strict=True):
                assert images.is_contiguous(memory_format=layout)
                assert images.dtype == dtype
                assert torch.allclose(images.double(), wanted, rtol=0, atol=tolerance)

    def test_fast_pixels_are_only_for_training(self, tmp_path: Path) -> None:
        """Of progressive files, which libjpeg decodes: our own decoder is faster without scaling."""
        images = [jpeg(photo(640, 480, i), progressive=True) for i in range(3)]
        dataset = FastDataset(write_numbered(tmp_path / "large.lmdb", images))
        whole = [T.RandomResizedCrop(24, scale=(0.9, 1.0))]
        for transform, equal in ((T.evaluate(24)[:2], True), (whole, False)):
            exact, fast = (next(iter(FastLoader(dataset, 3, transform=transform, pixels=p))) for p in ("exact", "fast"))
            assert torch.equal(exact[0], fast[0]) is equal
            assert (exact[0].float() - fast[0].float()).abs().mean() < 6


class TestSameBatches:
    """For one seed the bytes of batches depend on nothing else."""

    def test_any_number_of_threads_any_depth_any_container(self, place: Path) -> None:
        def two_epochs(name: str, **options: Any) -> tuple[str, str]:
            loader = FastLoader(FastDataset(place / name), 9, shuffle=True, seed=3, transform=AUGMENT, **options)
            return digest(loader), digest(loader)

        expected = two_epochs("set.lmdb", num_workers=1)
        assert expected[0] != expected[1]
        others: list[dict[str, Any]] = [
            {"num_workers": 5},
            {"prefetch": 1},
            {"prefetch": 4, "num_workers": 3},
            {"check": None},
            {"name": "folder"},
        ]
        for options in others:
            assert two_epochs(**{"name": "set.lmdb"} | options) == expected

    def test_slices_of_large_batches(self, tmp_path: Path) -> None:
        """A batch larger than what a thread takes at once, and not a multiple of it."""
        dataset = FastDataset(write_numbered(tmp_path / "75.lmdb", [IMAGES[i % N] for i in range(75)]))
        parts = FastLoader(dataset, 5, transform=AUGMENT)
        whole = FastLoader(dataset, 75, transform=AUGMENT, num_workers=3)
        assert torch.equal(torch.cat([images for images, _ in parts]), next(iter(whole))[0])

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_sample_does_not_depend_on_its_batch(self, numbered: FastDataset, shuffle: bool) -> None:
        small, large = (zip(*FastLoader(numbered, size, shuffle, transform=AUGMENT), strict=True) for size in (3, 16))
        for own, other in zip(small, large, strict=True):
            assert torch.equal(torch.cat(own), torch.cat(other))

    def test_each_iterator_has_its_own_epoch(self, numbered: FastDataset) -> None:
        loader = FastLoader(numbered, 8, shuffle=True, transform=AUGMENT)
        expected = [digest(loader), digest(loader)]
        loader.set_epoch(0)
        first, second = iter(loader), iter(loader)  # iter() takes the epoch, not the first batch
        batches = list(zip(second, first, strict=True))
        assert [digest(batch for _, batch in batches), digest(batch for batch, _ in batches)] == expected


class TestSchedule:
    @pytest.mark.parametrize(
        ("batch", "drop", "sizes"), [(16, False, [16, 16, 8]), (16, True, [16, 16]), (40, True, [40])]
    )
    def test_the_last_batch(self, numbered: FastDataset, batch: int, drop: bool, sizes: list[int]) -> None:
        loader = FastLoader(numbered, batch, drop_last=drop, transform=AUGMENT)
        batches = list(loader)
        assert [len(labels) for _, labels in batches] == sizes
        assert len(loader) == len(sizes)
        assert all_labels(batches) == list(range(sum(sizes)))
        assert loader.last_valid is not None
        assert loader.last_valid.tolist() == [True] * sizes[-1]

    @pytest.mark.parametrize("drop", [False, True])
    @pytest.mark.parametrize("world", [1, 2, 3, 8])
    def test_ranks_share_the_global_batches(self, numbered: FastDataset, world: int, drop: bool) -> None:
        def of(rank: int, ranks: int) -> FastLoader:
            batch = 24 // world * world // ranks
            return FastLoader(
                numbered, batch, True, seed=5, drop_last=drop, transform=AUGMENT, rank=rank, world_size=ranks
            )

        ranks = [of(rank, world) for rank in range(world)]
        for whole, *parts in zip(of(0, 1), *ranks, strict=True):
            assert len({len(labels) for _, labels in parts}) == 1
            for column, expected in enumerate(whole):
                real = [part[column][loader.last_valid] for part, loader in zip(parts, ranks, strict=True)]
                assert torch.equal(torch.cat(real), expected)

    def test_what_fills_the_last_batch_is_marked(self, numbered: FastDataset) -> None:
        loaders = [FastLoader(numbered, 9, transform=AUGMENT, rank=r, world_size=3) for r in range(3)]
        last = [list(loader)[-1][1].tolist() for loader in loaders]  # 40 = 27 + 13, filled to 15
        assert last == [[27, 28, 29, 30, 31], [32, 33, 34, 35, 0], [36, 37, 38, 39, 1]]
        valid = [loader.last_valid.tolist() for loader in loaders if loader.last_valid is not None]
        assert valid == [[True] * 5, [True] * 4 + [False], [True] * 4 + [False]]

    def test_ranks_of_torch_distributed(self, numbered: FastDataset, tmp_path: Path) -> None:
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
        try:
            assert all_labels(FastLoader(numbered, 16, transform=AUGMENT)) == list(range(N))
        finally:
            torch.distributed.destroy_process_group()
