"""Which samples a dataset has: subsets, filters, several datasets as one, sums of datasets."""

import pickle
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import exif, jpeg, photo
from loader_sets import all_labels, photographs, upright, write_folder, write_lmdb, write_numbered
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

from iofast import FastDataset, FastLoader, open_writer, order
from iofast import transforms as T
from iofast.containers.columns import Arrays
from iofast.containers.index import IndexView
from iofast.errors import OptionError
from iofast.order import Balanced, Population
from iofast.selection import Columns, Selection

IMAGES = photographs(12)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("selection")
    write_numbered(root / "numbered.lmdb", IMAGES)
    write_lmdb(root / "a.lmdb", IMAGES[:6])
    write_folder(root / "b", IMAGES[6:])
    for name, splits in (("c", ("train", "train", "val")), ("d", ("val", "train"))):
        with open_writer(root / f"{name}.lmdb") as writer:
            for number, split in enumerate(splits):
                writer.write({"jpg": IMAGES[number], "cls": number + 10 * (name == "d")}, split)
    return root


def labels(dataset: FastDataset) -> list[int]:
    assert [label for _, label in dataset] == dataset.targets
    return dataset.targets


def test_indices(sets: Path) -> None:
    dataset = FastDataset(sets / "numbered.lmdb", indices=[7, 0, 7, -1])
    assert labels(dataset) == [7, 0, 7, 11]
    assert dataset[-1][1] == 11
    assert dataset[0][0].tobytes() == FastDataset(sets / "numbered.lmdb")[7][0].tobytes()
    assert "4 samples (a subset)" in repr(dataset)
    assert labels(pickle.loads(pickle.dumps(dataset))) == [7, 0, 7, 11]
    with pytest.raises(IndexError, match="index 4 is out of range for a dataset of 4"):
        dataset[4]
    for few in (range(2, 5), np.array([2, 3, 4], np.uint8), torch.tensor([2, 3, 4])):
        assert labels(FastDataset(sets / "numbered.lmdb", indices=few)) == [2, 3, 4]
    empty = FastDataset(sets / "numbered.lmdb", indices=[])
    assert (len(empty), empty.targets, empty.__getitems__([])) == (0, [], [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"indices": [0, 12]}, "indices: index 12 is out of range for a dataset of 12"),
        (
            {"indices": np.array([2**64 - 1], np.uint64)},
            "index 9223372036854775807 is out of range for a dataset of 12",
        ),
        ({"indices": [0.5]}, "whole numbers in one dimension, found float64"),
        ({"indices": [True, False]}, "found bool"),
        ({"indices": 3}, "one dimension"),
        ({"filter": lambda columns: np.ones(3, bool)}, r"a mask of shape \(12,\), found \(3,\)"),
        ({"filter": [1]}, "filter must be callable"),
        ({"orientation": "up"}, "'apply' or 'ignore', found 'up'"),
        *(({name: T.train(32)}, f"{name} must be callable.*FastLoader") for name in ("transform", "target_transform")),
    ],
)
def test_options_are_checked(sets: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        FastDataset(sets / "numbered.lmdb", **options)


def test_filter(sets: Path) -> None:
    seen: list[Columns] = []

    def even(columns: Columns) -> np.ndarray:
        seen.append(columns)
        return columns.label % 2 == 0

    path = sets / "numbered.lmdb"
    assert labels(FastDataset(path, filter=even)) == [0, 2, 4, 6, 8, 10]
    assert seen[0].index.tolist() == seen[0].label.tolist() == list(range(12))
    assert [(w, h) for w, h in zip(seen[0].width, seen[0].height, strict=True)] == [upright(d).size for d in IMAGES]
    assert labels(FastDataset(path, indices=[4, 3, -2, 4], filter=even)) == [4, 10, 4]
    assert seen[1].index.tolist() == [4, 3, 10, 4]
    assert labels(FastDataset(path, filter=lambda columns: np.argsort(-columns.label)[:2])) == [11, 10]
    assert labels(FastDataset(path, indices=[9, 8, 7], filter=lambda columns: [2, 0])) == [7, 9]
    assert len(FastDataset(path, filter=lambda columns: columns.width > 10_000)) == 0
    assert labels(pickle.loads(pickle.dumps(FastDataset(path, filter=lambda columns: columns.label > 9)))) == [10, 11]


def test_several_paths(sets: Path) -> None:
    """As a list, or as a sum."""
    a, b = FastDataset(sets / "a.lmdb"), FastDataset(sets / "b")
    listed = FastDataset([sets / "a.lmdb", sets / "b"])
    for both in (listed, a + b, pickle.loads(pickle.dumps(listed)), pickle.loads(pickle.dumps(a + b))):
        assert (type(both), both.parts, both.classes) == (FastDataset, (6, 6), a.classes)
        assert labels(both) == labels(a) + labels(b)
        assert both.path == [str(sets / "a.lmdb"), str(sets / "b")]
        assert both.fingerprint == listed.fingerprint  # so a state of one is a state of the other
    assert [image.tobytes() for image, _ in a + b] == [image.tobytes() for each in (a, b) for image, _ in each]
    assert FastDataset([sets / "a.lmdb"]).path == str(sets / "a.lmdb")
    numbered = FastDataset(sets / "numbered.lmdb")
    with pytest.raises(OptionError, match="classes"):
        FastDataset([sets / "a.lmdb", sets / "numbered.lmdb"])
    with pytest.raises(OptionError, match=r"a\.lmdb and .*numbered\.lmdb cannot be joined: the first has 3 classes"):
        a + numbered


def test_sums_of_splits_and_subsets(sets: Path) -> None:
    train, val = (FastDataset(sets / "c.lmdb", split=name) for name in ("train", "val"))
    some = FastDataset(sets / "numbered.lmdb", indices=[7, 3, 3])
    assert (train + some + val).targets == [0, 1, 7, 3, 3, 2]
    assert labels(some + train) == [7, 3, 3, 0, 1]
    assert (some + FastDataset(sets / "numbered.lmdb", indices=[])).targets == [7, 3, 3]
    loader = FastLoader(some + train + some, 4, order=order.Mixed([0, 1, 0]), transform=[T.Resize((8, 8))])
    assert set(all_labels(loader)) == {0, 1}  # parts are mixed by weight


def test_splits_of_several_paths(sets: Path) -> None:
    paths = [sets / "c.lmdb", sets / "d.lmdb"]
    train, val = FastDataset(paths, split="train"), FastDataset(paths, split="val")
    assert (labels(train), train.parts) == ([0, 1, 11], (2, 1))
    assert (labels(val), val.parts) == ([2, 10], (1, 1))
    assert FastDataset(paths, split="all").parts == (3, 2)
    with pytest.raises(OptionError, match=r"c\.lmdb, .*d\.lmdb has the splits train, val.*with split="):
        FastDataset(paths)
    val, whole = (FastDataset(paths[0], split=name) for name in ("val", "all"))
    assert (labels(val), labels(whole), val[-1][1]) == ([2], [0, 1, 2], 2)
    assert val[0][0].tobytes() == whole[2][0].tobytes()
    with pytest.raises(IndexError):
        val[1]
    with pytest.raises(OptionError, match=r"no split 'trian', only .*train"):
        FastDataset(paths[0], split="trian")
    apart = FastDataset(paths[0], split="all")
    apart._selection = Selection([(0, 1), (2, 3)])  # as appending to a packed set leaves them
    assert (labels(apart), apart[-1][1]) == ([0, 2], 2)


def test_parts_of_a_subset(sets: Path) -> None:
    paths = [sets / "a.lmdb", sets / "b"]
    assert FastDataset(paths, indices=[5, 0, 6, 7, 6]).parts == (2, 3)
    assert FastDataset(paths, indices=[6, 5]).parts == (2,)
    assert FastDataset(paths, indices=[7]).parts == (0, 1)
    assert FastDataset(paths[0], indices=[]).parts == (0,)
    assert FastDataset(paths[0]).parts == (6,)


def test_fingerprint(sets: Path) -> None:
    def of(*names: str, split: str = "train", **options: Any) -> str:
        return FastDataset([sets / f"{name}.lmdb" for name in names], split=split, **options).fingerprint

    made = [of("c", "d"), of("c", "d", split="val"), of("d", "c"), of("c"), of("c", "d", indices=[1, 0])]
    few = of("c", "d", indices=[0, 1])
    assert len({few, *made}) == len(made) + 1
    assert of("c", "d") == made[0]
    assert of("c", "d", filter=lambda columns: columns.index < 2) == few


def test_columns_are_looked_up_a_part_at_a_time(sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iofast.containers.located.STEP", 5)
    dataset = FastDataset(sets / "numbered.lmdb")
    assert dataset.targets == list(range(12))
    widths, heights = dataset.sizes()
    assert [*zip(widths.tolist(), heights.tolist(), strict=True)] == [upright(data).size for data in IMAGES]
    assert (widths.dtype, heights.dtype) == (np.int32, np.int32)


N = 40


@pytest.mark.parametrize("kind", ["lmdb", "folder"])
def test_orientation(tmp_path: Path, kind: str) -> None:
    """With "ignore" an image is what its file stores, and so are the sizes that a filter or a bucket sees."""
    images = [jpeg(photo(40, 24, i), exif=exif(i)) for i in range(1, 9)]
    path = write_lmdb(tmp_path / "a.lmdb", images) if kind == "lmdb" else write_folder(tmp_path / "a", images)
    stored = FastDataset(path, orientation="ignore")
    for index, data in enumerate(images):
        plain = np.asarray(Image.open(BytesIO(data)).convert("RGB"), int)
        assert np.abs(np.asarray(stored[index][0], int) - plain).max() <= 1
    for way, tall in (("ignore", 0), ("apply", 4)):
        dataset = FastDataset(path, orientation=way, filter=lambda c: c.height > c.width)  # type: ignore[arg-type]
        assert len(dataset) == tall
        sizes = FastDataset(path, orientation=way).sizes()  # type: ignore[arg-type]
        assert sorted(zip(*(side.tolist() for side in sizes), strict=True)) == [(24, 40)] * tall + [(40, 24)] * (
            8 - tall
        )


def test_labels_are_read_without_places(sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = set[str](), IndexView.read

    def noted(self: IndexView, names: Sequence[str], indices: np.ndarray) -> Arrays:
        asked.update(names)
        return real(self, names, indices)

    monkeypatch.setattr(IndexView, "read", noted)
    dataset = FastDataset(sets / "numbered.lmdb")
    assert dataset.targets == list(range(12))
    assert len(FastDataset(sets / "numbered.lmdb", filter=lambda columns: columns.label == 3)) == 1
    order = Balanced().bind(Population(12, dataset.labels))
    assert sorted(order.indices(0, np.arange(12))) == list(range(12))
    assert asked == {"label"}


def size_of(image: Image.Image) -> int:
    return image.width


def test_with_other_datasets_it_is_torchs(place: Path) -> None:
    path = place / "numbered.lmdb"
    plain, sized = FastDataset(path), FastDataset(path, transform=size_of)
    joined = plain + sized
    assert isinstance(joined, ConcatDataset)
    assert [label for _, label in joined] == [*range(N)] * 2
    assert isinstance(plain + Subset(plain, [1]), ConcatDataset)
    sizes, _ = next(iter(DataLoader(sized + FastDataset(path, transform=size_of), 2 * N)))
    assert sizes[:N].tolist() == sizes[N:].tolist()
