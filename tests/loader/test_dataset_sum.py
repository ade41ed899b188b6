"""`dataset + dataset`: one FastDataset where it can be, which FastLoader reads, else torch's ConcatDataset."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from loader_sets import photographs, write_folder, write_lmdb, write_numbered
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

from iofast import FastDataset, FastLoader, open_writer, order
from iofast import transforms as T
from iofast.errors import OptionError

IMAGES = photographs(12)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sum")
    write_numbered(root / "numbered.lmdb", IMAGES)
    write_lmdb(root / "a.lmdb", IMAGES[:6])
    write_folder(root / "b", IMAGES[6:])
    with open_writer(root / "splits.lmdb") as writer:
        for number, split in enumerate(("val", "train", "train")):
            writer.write({"jpg": IMAGES[number], "cls": number}, split)
    return root


def test_whole_datasets_are_those_of_a_list(place: Path) -> None:
    a, b = FastDataset(place / "a.lmdb"), FastDataset(place / "b")
    both, listed = a + b, FastDataset([place / "a.lmdb", place / "b"])
    assert isinstance(both, FastDataset)
    assert both.targets == listed.targets == a.targets + b.targets
    assert both.fingerprint == listed.fingerprint  # so a state of one is a state of the other
    assert (both.parts, both.path) == (listed.parts, listed.path)
    assert [image.tobytes() for image, _ in both] == [image.tobytes() for each in (a, b) for image, _ in each]
    assert pickle.loads(pickle.dumps(both)).targets == both.targets


def test_splits_and_subsets(place: Path) -> None:
    train, val = (FastDataset(place / "splits.lmdb", split=name) for name in ("train", "val"))
    some = FastDataset(place / "numbered.lmdb", indices=[7, 3, 3])
    assert (train + val).targets == [1, 2, 0]
    assert (train + some + val).targets == [1, 2, 7, 3, 3, 0]
    assert [label for _, label in some + train] == [7, 3, 3, 1, 2]
    assert (some + FastDataset(place / "numbered.lmdb", indices=[])).targets == [7, 3, 3]


def test_parts_are_mixed_by_weight(place: Path) -> None:
    numbered, splits = FastDataset(place / "numbered.lmdb"), FastDataset(place / "splits.lmdb", split="train")
    three = numbered + splits + numbered
    assert three.parts == (12, 2, 12)
    loader = FastLoader(three, 8, order=order.Mixed([0, 1, 0]), transform=[T.Resize((8, 8))])
    assert {label for _, labels in loader for label in labels.tolist()} == {1, 2}


def test_classes_that_differ(place: Path) -> None:
    with pytest.raises(OptionError, match=r"a\.lmdb and .*numbered\.lmdb cannot be joined: the first has 3 classes"):
        FastDataset(place / "a.lmdb") + FastDataset(place / "numbered.lmdb")


def size_of(image: Image.Image) -> int:
    return image.width


def test_other_datasets_are_torchs_matter(place: Path) -> None:
    path = place / "numbered.lmdb"
    plain, sized = FastDataset(path), FastDataset(path, transform=size_of)
    joined = plain + sized
    assert isinstance(joined, ConcatDataset)
    assert [label for _, label in joined] == [*range(12)] * 2
    assert isinstance(sized + FastDataset(path, transform=size_of), FastDataset)
    assert isinstance(plain + Subset(plain, [1]), ConcatDataset)
    sizes, _ = next(iter(DataLoader(sized + FastDataset(path, transform=size_of), 24)))
    assert sizes[:12].tolist() == sizes[12:].tolist()
    with pytest.raises(OptionError, match=r"^dataset must be a FastDataset, found ConcatDataset: give FastDataset\(\["):
        FastLoader(joined)
