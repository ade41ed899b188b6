"""FastLoader's batches: the right samples, pixel by pixel, with any number of threads, also none, and ranks."""

import signal
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from device_model import lend
from kernel_images import jpeg, photo, save
from loader_sets import all_labels, check_equal, digest, labels_of, photographs, upright, workers, write_numbered
from numpy.typing import NDArray
from PIL import Image

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.choices import Draw
from iofast.errors import DecodeError
from iofast.loader.batches import BatchJob
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
    @pytest.mark.parametrize(
        "transform",
        [AUGMENT, T.evaluate(24)[:2], [T.RandomResizedCrop((20, 31), scale=(0.5, 1.0))]],
        ids=["train", "evaluate", "crop"],
    )
    def test_against_pillow(self, numbered: FastDataset, transform: list[T.Transform]) -> None:
        loader = FastLoader(numbered, 7, shuffle=True, seed=9, transform=transform, num_workers=2)
        loader.set_epoch(epoch := 5)
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

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_sample_does_not_depend_on_its_batch(self, tmp_path: Path, shuffle: bool) -> None:
        """Also in one that is larger than what a thread takes at once, and not a multiple of it."""
        dataset = FastDataset(write_numbered(tmp_path / "75.lmdb", [IMAGES[i % N] for i in range(75)]))
        small, *larger = (
            [torch.cat(column) for column in zip(*FastLoader(dataset, size, shuffle, transform=AUGMENT), strict=True)]
            for size in (3, 16, 75)
        )
        for other in larger:
            assert all(map(torch.equal, small, other))


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


class TestWithoutThreads:
    """`num_workers=0`: the consumer's own thread makes each batch, and it is the same batch."""

    RESIZE: ClassVar[dict[str, Any]] = {"transform": [T.Resize((16, 16))]}
    CASES: ClassVar[dict[str, dict[str, Any]]] = {
        "colours": {"transform": [*AUGMENT, T.ColorJitter(0.4), T.Normalize(MEAN, STD)], "dtype": torch.float32},
        "cached": RESIZE | {"cache": "device"},
        "list": {"ragged": "list"},
    }

    @staticmethod
    def make(place: Path, num_workers: int = 0, name: str = "numbered.lmdb", **options: Any) -> FastLoader:
        return FastLoader(FastDataset(place / name), 7, num_workers=num_workers, **options)

    @pytest.mark.parametrize("device", [False, True], ids=["cpu", "device"])
    @pytest.mark.parametrize("case", CASES)
    def test_the_same_batches(self, place: Path, case: str, device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = list(self.make(place, 2, **self.CASES[case]))
        loader = self.make(place, **self.CASES[case])
        if device:
            lend(loader)
        made, run = set[tuple[int, int]](), BatchJob.run

        def noted(job: BatchJob, part: Any) -> None:
            made.add((threading.get_ident(), workers()))
            run(job, part)

        monkeypatch.setattr(BatchJob, "run", noted)
        check_equal(loader, expected)
        assert made == {(threading.get_ident(), 0)}
        stats = loader.stats
        assert (loader.num_workers, stats.num_workers, stats.depth, stats.images) == (0, 0, 1, N)
        assert 0 < stats.cpu_share <= 1

    def test_a_peek_a_place_and_a_users_function(self, place: Path) -> None:
        threads = set[int]()

        def noted(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
            threads.add(threading.get_ident())
            return sample | {"label": int(rng.integers(1 << 30))}

        whole = labels_of(self.make(place, 2, map_sample=noted, **self.RESIZE))
        threads.clear()
        loader = self.make(place, map_sample=noted, **self.RESIZE)
        batches = iter(loader)
        assert next(batches)[1].tolist() == whole[0]
        assert loader.peek()[1].tolist() == whole[1]
        again = self.make(place, map_sample=noted, **self.RESIZE)
        again.load_state_dict(loader.state_dict())
        assert labels_of(again) == labels_of(batches) == whole[1:]
        assert threads == {threading.get_ident()}

    def test_errors_come_with_their_batch(self, place: Path) -> None:
        batches = iter(self.make(place, name="broken.lmdb", **self.RESIZE))
        with pytest.raises(DecodeError, match=r"broken\.lmdb: 0+5: .* \(and 1 more of this batch\)"):
            next(batches)
        assert next(batches, None) is None
        own, other = (self.make(place, k, "broken.lmdb", on_error="replace", **self.RESIZE) for k in (0, 2))
        assert digest(own) == digest(other)
        assert own.failures == other.failures != []

    def test_a_ctrl_c_loses_no_batch(self, place: Path) -> None:
        """It comes while a batch is made, in the thread that makes it."""
        done: list[bool] = []

        def interrupted(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
            if sample["label"] == 9 and not done:
                done.append(True)
                signal.raise_signal(signal.SIGINT)
            return sample

        loader = self.make(place, map_sample=interrupted, **self.RESIZE)
        batches = iter(loader)
        assert next(batches)[1].tolist() == [*range(7)]
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        loader.set_epoch(0)
        assert all_labels(loader) == [*range(7, N)]
