"""`dataset + dataset`: one FastDataset where it can be, which FastLoader reads, else torch's ConcatDataset."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from loader_sets import all_labels, photographs
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

from iofast import FastDataset, FastLoader, open_writer, order
from iofast import transforms as T
from iofast.errors import OptionError

N = 40


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sum") / "splits.lmdb"
    with open_writer(path) as writer:
        for number, split in enumerate(("val", "train", "train")):
            writer.write({"jpg": photographs(3)[number], "cls": number}, split)
    return path


def test_whole_datasets_are_those_of_a_list(place: Path) -> None:
    a, b = FastDataset(place / "set.lmdb"), FastDataset(place / "folder")
    both, listed = a + b, FastDataset([place / "set.lmdb", place / "folder"])
    assert isinstance(both, FastDataset)
    assert both.targets == listed.targets == a.targets + b.targets
    assert both.fingerprint == listed.fingerprint  # so a state of one is a state of the other
    assert (both.parts, both.path) == (listed.parts, listed.path)
    assert [image.tobytes() for image, _ in both] == [image.tobytes() for each in (a, b) for image, _ in each]
    assert pickle.loads(pickle.dumps(both)).targets == both.targets


def test_splits_and_subsets(place: Path, splits: Path) -> None:
    train, val = (FastDataset(splits, split=name) for name in ("train", "val"))
    some = FastDataset(place / "numbered.lmdb", indices=[7, 3, 3])
    assert (train + val).targets == [1, 2, 0]
    assert (train + some + val).targets == [1, 2, 7, 3, 3, 0]
    assert [label for _, label in some + train] == [7, 3, 3, 1, 2]
    assert (some + FastDataset(place / "numbered.lmdb", indices=[])).targets == [7, 3, 3]


def test_parts_are_mixed_by_weight(numbered: FastDataset, splits: Path) -> None:
    three = numbered + FastDataset(splits, split="train") + numbered
    assert three.parts == (N, 2, N)
    loader = FastLoader(three, 8, order=order.Mixed([0, 1, 0]), transform=[T.Resize((8, 8))])
    assert set(all_labels(loader)) == {1, 2}


def test_classes_that_differ(place: Path) -> None:
    with pytest.raises(OptionError, match=r"set\.lmdb and .*numbered\.lmdb cannot be joined: the first has 3 classes"):
        FastDataset(place / "set.lmdb") + FastDataset(place / "numbered.lmdb")


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
    with pytest.raises(OptionError, match=r"^dataset must be a FastDataset, found ConcatDataset: give FastDataset\(\["):
        FastLoader(joined)
