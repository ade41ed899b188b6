"""Batches of anything: fields, users' functions, images of different sizes, subsets."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo
from loader_sets import photographs, with_broken

from iofast import FastDataset, FastLoader, kernel, open_writer, order
from iofast import transforms as T
from iofast.choices import generator
from iofast.errors import DecodeError, OptionError

N = 12
CROP = [T.RandomResizedCrop(24)]
Sample = dict[str, Any]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs with boxes, soft labels, a caption and a number of their own."""
    target = tmp_path_factory.mktemp("samples") / "set.lmdb"
    with open_writer(target) as writer:
        for number, image in enumerate(photographs(N)):
            boxes = [[number, 0, 10, 10 + n] for n in range(number % 3)]
            writer.write(
                {
                    "jpg": image,
                    "cls": number,
                    "boxes.json": boxes,
                    "soft.json": [number / N, 1 - number / N],
                    "targets.json": {"age": number, "name": f"n{number}"},
                    "txt": f"photograph {number}",
                }
            )
    return target


def make(dataset: FastDataset, **options: Any) -> FastLoader:
    given = {"batch_size": 5, "transform": CROP, "num_workers": 2} | options
    return FastLoader(dataset, **given)


class TestFields:
    def test_a_batch_is_a_dictionary(self, path: Path) -> None:
        fields = ["image", "label", "key", "index", "crop", "boxes.json", "soft.json", "targets.json", "txt"]
        batches = list(make(FastDataset(path, fields=fields)))
        plain = list(make(FastDataset(path)))
        for batch, (images, labels) in zip(batches, plain, strict=True):
            assert list(batch) == [*fields, "valid"]
            assert torch.equal(batch["image"], images)
            assert batch["label"].tolist() == batch["index"].tolist() == labels.tolist()
            assert batch["key"] == [f"{number:08d}" for number in labels.tolist()]
            assert batch["txt"] == [f"photograph {number}" for number in labels.tolist()]
            assert [len(boxes) for boxes in batch["boxes.json"]] == [number % 3 for number in labels.tolist()]
            assert batch["soft.json"].dtype == torch.float32
            assert batch["soft.json"].shape == (len(labels), 2)
            assert [each["age"] for each in batch["targets.json"]] == labels.tolist()
            assert batch["valid"].all()

    def test_a_collate_for_a_field(self, path: Path) -> None:
        def stacked(values: list[Any]) -> torch.Tensor:
            rows = [[row, *box] for row, boxes in enumerate(values) for box in boxes]
            return torch.tensor(rows).reshape(-1, 5)

        loader = make(FastDataset(path, fields=["label", "boxes.json"]), collate={"boxes.json": stacked})
        for batch in loader:
            labels = batch["label"]
            assert batch["boxes.json"].shape == (sum(number % 3 for number in labels.tolist()), 5)
            assert (labels[batch["boxes.json"][:, 0]] == batch["boxes.json"][:, 1]).all()
        assert loader.stats.images == 0  # nothing is decoded
        (lengths, labels), *_ = make(FastDataset(path), collate={"image": len, "label": tuple})
        assert (lengths, labels) == (5, (0, 1, 2, 3, 4))

    def test_a_field_with_a_name_of_the_loaders_own(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "names.lmdb") as writer:
            writer.write({"cls": 0, "valid": "x", "size": "y"})
        dataset = FastDataset(tmp_path / "names.lmdb", fields=["label", "size"])
        assert next(iter(make(dataset)))["size"] == [b"y"]
        with pytest.raises(OptionError, match="fields have the name 'size'"):
            make(dataset, ragged="pad")
        with pytest.raises(OptionError, match="fields have the name 'valid'"):
            make(FastDataset(tmp_path / "names.lmdb", fields=["label", "valid"]))

    def test_a_broken_field_is_a_failure_of_its_sample(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "broken.lmdb") as writer:
            for number in range(6):
                writer.write({"cls": number, "x.json": b"{" if number == 2 else b"1"})
        dataset = FastDataset(tmp_path / "broken.lmdb", fields=["label", "x.json"])
        with pytest.raises(DecodeError, match=r"broken.lmdb: 00000002: .*x\.json"):
            list(make(dataset))
        loader = make(dataset, on_error="drop")
        assert [batch["label"].tolist() for batch in loader] == [[0, 1, 3, 4], [5]]
        assert loader.stats.errors == 1
        assert str(loader.failures[0]).count("broken.lmdb") == 1


def darker(sample: Sample, rng: np.random.Generator) -> Sample:
    return sample | {"image": sample["image"] // 2, "noise": float(rng.random())}


FUNCTIONS: list[tuple[Any, int]] = [(None, 2), (darker, 2), (darker, 1)]  # and numbers of threads


class TestFunctions:
    def test_per_sample(self, path: Path) -> None:
        dataset = FastDataset(path, fields=["image", "label"])
        options: dict[str, Any] = {"shuffle": True, "memory_format": torch.channels_last}
        plain, *made = (list(make(dataset, **options, map_sample=f, num_workers=k)) for f, k in FUNCTIONS)
        for before, *after in zip(plain, *made, strict=True):
            for each in after:
                assert torch.equal(each["image"], before["image"] // 2)
                assert each["image"].is_contiguous(memory_format=torch.channels_last)
        noises = [[noise for batch in batches for noise in batch["noise"].tolist()] for batches in made]
        assert len(set(noises[0])) == N
        assert noises[0] == noises[1]

    def test_errors_say_which_sample(self, path: Path) -> None:
        for error, function in (
            (ZeroDivisionError, lambda sample, rng: 1 // 0),
            (OptionError, lambda sample, rng: None),
        ):
            with pytest.raises(error) as caught:
                list(make(FastDataset(path), map_sample=function))
            assert caught.value.__notes__ == [f"in map_sample: {path}: 00000000, position 0 of epoch 0"]

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            (lambda sample: None, OptionError, "map_sample must return a dictionary, found NoneType"),
            (lambda sample: {"label": 1}, OptionError, "map_sample must return image and label"),
            (lambda sample: sample | {"noise": 1}, OptionError, "returned 'noise', for which a pair .* no place"),
            (lambda sample: sample | {"image": 7}, OptionError, "images that are tensors .* found int"),
            (lambda sample: sample | {"image": sample["image"][0]}, OptionError, r"found \(24, 24\)"),
            (
                lambda sample: sample | {"image": sample["image"][:, sample["label"] :]},
                OptionError,
                "images of one shape",
            ),
            (lambda sample: sample | {"x" * sample["label"]: 0}, OptionError, "the same names for all samples"),
            (lambda sample: 1 // 0, ZeroDivisionError, "by zero"),
        ],
    )
    def test_faults_of_the_function(self, path: Path, change: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            list(make(FastDataset(path), map_sample=lambda sample, rng: change(sample), on_error="drop"))

    def test_other_images_and_pixel_operations_do_not_go_together(self, path: Path) -> None:
        def floats(sample: Sample, rng: np.random.Generator) -> Sample:
            del rng
            return sample | {"image": sample["image"].float()}

        def last(sample: Sample, rng: np.random.Generator) -> Sample:
            del rng
            return sample | {"image": sample["image"].permute(1, 2, 0)}

        for change, found in ((floats, r"torch\.float32"), (last, r"torch\.uint8 \(24, 24, 3\)")):
            with pytest.raises(OptionError, match=r"images of map_sample must stay uint8 .*found " + found):
                list(make(FastDataset(path), map_sample=change, transform=T.train(24), dtype=torch.float32))
        (images, _), *_ = make(FastDataset(path), map_sample=floats)
        assert images.dtype == torch.float32


class TestSampleSizes:
    @pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
    def test_each_is_what_it_is_alone(self, path: Path, layout: torch.memory_format, dtype: torch.dtype) -> None:
        dataset, steps = FastDataset(path, fields=["image", "label"]), [T.Resize(24), T.RandomHorizontalFlip()]
        options: dict[str, Any] = {"transform": steps, "dtype": dtype, "memory_format": layout}
        alone = [batch["image"][0] for batch in make(dataset, batch_size=1, **options)]
        listed = [image for batch in make(dataset, ragged="list", **options) for image in batch["image"]]
        assert all(image.unsqueeze(0).is_contiguous(memory_format=layout) for image in listed)
        padded = list[torch.Tensor]()
        for batch in make(dataset, ragged="pad", **options):
            images, sizes = batch["image"], batch["size"]
            assert images.shape[2:] == tuple(sizes.max(0).values.tolist())
            for image, (height, width) in zip(images, sizes.tolist(), strict=True):
                padded.append(image[:, :height, :width])
                assert not image[:, height:].any()
                assert not image[:, :, width:].any()
        for own, *others in zip(alone, listed, padded, strict=True):
            assert all(torch.equal(own, other) for other in others)

    @pytest.mark.parametrize("way", ["apply", "ignore"])
    def test_whole_images(self, place: Path, way: Any) -> None:
        dataset = FastDataset([place / "set.lmdb", place / "folder"], orientation=way)  # with and without checksums
        images = [image for batch, _ in make(dataset, transform=None, ragged="list") for image in batch]
        for image, (stored, _) in zip(images, dataset, strict=True):
            assert np.array_equal(image.permute(1, 2, 0), np.asarray(stored))

    @pytest.mark.parametrize("times", [1, 2])
    def test_what_fills_up_a_bucket_is_not_valid(self, path: Path, times: int) -> None:
        sizes = [(24, 24), (20, 28), (28, 20)]
        dataset = FastDataset(path, fields=["image", "index"])
        given = {"transform": [T.ResizeToBucket(sizes)], "order": order.Repeated(times, order.Buckets(sizes))}
        ranks = [make(dataset, **given, batch_size=4, rank=rank, world_size=2) for rank in (0, 1)]
        batches = [batch for each in ranks for batch in each]
        valid = torch.cat([batch["index"][batch["valid"]] for batch in batches]).bincount(minlength=len(dataset))
        assert sum(len(batch["index"]) for batch in batches) > valid.sum()
        assert valid.max() == times
        assert times > 1 or valid.min() == 1

    def test_replaced_among_images_of_different_sizes(self, tmp_path: Path) -> None:
        images = [jpeg(photo(40 + number, 30, number)) for number in range(8)]
        dataset = FastDataset(with_broken(tmp_path / "broken.lmdb", images, [1, 6]))
        for found, labels in make(dataset, transform=None, ragged="list", on_error="replace"):
            for image, label in zip(found, labels.tolist(), strict=True):
                assert image.shape == (3, 30, 40 + label)


@pytest.fixture(scope="module")
def dataset(place: Path) -> FastDataset:
    return FastDataset(place / "numbered.lmdb", fields=["index"], indices=range(N))


class TestMapBatch:
    @pytest.mark.parametrize("ranks", [1, 2])
    def test_gets_what_it_asks_for(self, dataset: FastDataset, ranks: int) -> None:
        def asking(batch: dict[str, Any], position: int, *, rng: np.random.Generator, epoch: int) -> tuple[Any, ...]:
            return batch["index"].tolist(), epoch, position, rng.random()

        seen = []
        for rank in range(ranks):
            loader = FastLoader(dataset, 4 // ranks, seed=9, map_batch=asking, rank=rank, world_size=ranks)
            loader.set_epoch(2)
            first = list(loader)
            loader.set_epoch(2)
            assert loader.peek() == first[0]
            assert list(loader) == first
            assert [(epoch, position) for _, epoch, position, _ in first] == [(2, index[0]) for index, *_ in first]
            seen += first
        numbers = {number for *_, number in seen}
        assert len(numbers) == len(seen) == N // 4 * ranks
        assert not numbers & {generator(9, 2, position).random() for position in range(N)}  # those of map_sample

    def test_is_left_alone_otherwise(self, dataset: FastDataset) -> None:
        def bound(batch: dict[str, Any], rng: str) -> str:
            return rng

        def rest(batch: dict[str, Any], **options: Any) -> dict[str, Any]:
            return options

        functions: list[tuple[Any, Any]] = [(functools.partial(bound, rng="the user's"), "the user's"), (rest, {})]
        for function, expected in [*functions, (len, 2)]:  # index and valid
            assert list(FastLoader(dataset, 12, map_batch=function)) == [expected]


def test_outs_of_different_sizes_that_do_not_fit(place: Path) -> None:
    reader = FastDataset(place / "set.lmdb").reader
    located, context = reader.locate(np.arange(2)), kernel.Context(kernel.DecodeOptions())
    good = np.zeros((2, 2, 3), np.uint8)
    boxes, flips, status = np.zeros((2, 8), np.int32), np.zeros(2, np.uint8), np.zeros(2, np.int32)
    with reader.payloads(located, 0, 2) as payloads:
        for outs, rows in (
            ([good], 2),
            ([good, good[:, :, :2]], 2),
            ([good, good.astype(np.float32)], 2),
            ([good] * 2, 1),
        ):
            with pytest.raises(ValueError, match=r"shape|longer|rows"):
                kernel.decode_each(context, payloads, boxes[:rows], flips, outs, status)
