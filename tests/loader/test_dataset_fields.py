"""Samples as dictionaries of fields, of which only the chosen ones are read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_images import photo, save
from loader_sets import CLASSES, photographs, upright, write_folder
from PIL import Image

from iofast import FastDataset, open_writer
from iofast.containers.base import Failures
from iofast.containers.columns import ABSENT
from iofast.errors import ContainerError, DecodeError, OptionError

IMAGES = photographs(6)
SOFT = [[0.5, 0.25, 0.25], [1, 0, 0], [0, 0, 1], [0.125, 0.875, 0], [0, 1, 0], [1, 0, 0]]
ALL = ["image", "label", "key", "index", "soft.json", "boxes.json", "seg.png", "txt", "jpg", "coarse.cls"]


def write(path: Path) -> Path:
    with open_writer(path, classes=CLASSES) as writer:
        for i, data in enumerate(IMAGES):
            mask = save(Image.fromarray(np.full((4, 5), i, np.uint8)), "PNG")
            fields = {
                "jpg": data,
                "cls": i % 3,
                "soft.json": SOFT[i],
                "boxes.json": [[i, 0, 9, 9]] * i,
                "seg.png": mask,
            }
            extra = {"txt": f"picture {i}", "coarse.cls": i // 3} if i != 4 else {}
            writer.write({**fields, **extra})  # type: ignore[arg-type]
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("fields") / "a.lmdb")


def test_a_sample_is_a_dictionary(path: Path) -> None:
    dataset = FastDataset(path, fields=ALL)
    sample = dataset[3]
    assert list(sample) == ALL
    assert np.abs(np.asarray(sample["image"], int) - np.asarray(upright(IMAGES[3]), int)).max() <= 1
    plain = {name: sample[name] for name in ("label", "key", "index", "soft.json", "boxes.json", "txt", "coarse.cls")}
    assert plain == {
        "label": 0,
        "key": "00000003",
        "index": 3,
        "soft.json": SOFT[3],
        "boxes.json": [[3, 0, 9, 9]] * 3,
        "txt": "picture 3",
        "coarse.cls": 1,
    }
    assert sample["jpg"] == IMAGES[3]
    assert sample["seg.png"].tolist() == [[3] * 5] * 4
    assert dataset[4]["txt"] is None
    assert dataset[-1]["index"] == 5
    assert pickle.loads(pickle.dumps(dataset))[3]["txt"] == "picture 3"
    subset = FastDataset(path, fields=["index", "key"], indices=[5, 2])
    assert subset[1] == {"index": 1, "key": "00000002"}


def test_transforms_are_for_image_and_label(path: Path) -> None:
    dataset = FastDataset(
        path, fields=["label", "txt", "image"], transform=lambda image: image.size, target_transform=str
    )
    assert dataset[1] == {"label": "1", "txt": "picture 1", "image": upright(IMAGES[1]).size}
    for name in ("transform", "target_transform"):
        with pytest.raises(OptionError, match=rf"{name} is called with the (image|label), which is not among"):
            FastDataset(path, fields=["key"], **{name: str})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": ["image", "text"]}, "no field 'text', only image, crop, label, key, index, boxes.json, cls, co"),
        ({"fields": []}, "must be a list of names"),
        ({"fields": "image"}, "must be a list of names, each once, found 'image'"),
        ({"fields": ["image", "image"]}, "each once"),
        ({"fields": 5}, "fields must be a list of names, each once, found 5"),
        ({"path": None}, "path must be a path, or a list of paths, found None"),
        ({"path": []}, r"path must be a path, or a list of paths, found \[\]"),
        ({"indices": [[1], [2, 3]]}, "indices must be an array in one dimension"),
        ({"filter": lambda columns: [[1], [2, 3]]}, "what filter returns must be an array in one dimension"),
    ],
)
def test_wrong_options(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        FastDataset(**{"path": path, "fields": ["label"]} | options)


class TestOtherFieldsAreNotRead:
    @pytest.fixture
    def ruined(self, tmp_path: Path) -> Path:
        """All bytes of the images, masks and boxes are overwritten."""
        path = write(tmp_path / "ruined.lmdb")
        reader = FastDataset(path).reader
        with path.open("r+b") as file:
            for field in ("jpg", "seg.png", "boxes.json"):
                located = reader.locate(np.arange(6), field)
                for offset, length in zip(located.offset.tolist(), located.length.tolist(), strict=True):
                    file.seek(offset)
                    file.write(bytes(length))
        return path

    def test_damage_elsewhere(self, ruined: Path) -> None:
        dataset = FastDataset(ruined, fields=["label", "key", "soft.json", "txt"])
        assert [sample["soft.json"] for sample in dataset] == SOFT
        assert dataset[2]["txt"] == "picture 2"
        with pytest.raises(DecodeError, match=r"ruined\.lmdb: 00000000: .*CRC32C"):
            FastDataset(ruined, fields=["image"])[0]
        with pytest.raises(ContainerError, match=r"ruined\.lmdb: 00000002: seg\.png at offset \d+ is damaged"):
            FastDataset(ruined, fields=["seg.png"])[2]

    def test_failures_can_be_collected(self, ruined: Path) -> None:
        dataset, indices = FastDataset(ruined, fields=["image", "seg.png"]), np.array([1, 4])
        located = dataset.locate(indices)
        for name in ("image", "seg.png"):
            failed: Failures = {}
            assert dataset.values(name, indices, located, failed=failed) == [None, None]
            assert [f"0000000{i}" in str(failed[row]) for row, i in enumerate([1, 4])] == [True, True]
        failed = {}
        assert dataset.values("seg.png", indices, located, check=False, failed=failed) == [None, None]
        assert "00000001: field seg.png: not an image" in str(failed[0])
        with pytest.raises(DecodeError, match=r"00000001: field seg\.png: not an image"):
            dataset.values("seg.png", indices, located, check=False)


def test_records_without_images(tmp_path: Path) -> None:
    with open_writer(tmp_path / "text.lmdb") as writer:
        for i in range(3):
            writer.write({"txt": f"line {i}", "cls": i, "depth.png": save(Image.fromarray(photo(5, 4, i)), "PNG")})
    with pytest.raises(OptionError, match=r"text\.lmdb has no images: give fields=, any of label, key, index, cls"):
        FastDataset(tmp_path / "text.lmdb")
    with pytest.raises(OptionError, match="has no field 'image'"):
        FastDataset(tmp_path / "text.lmdb", fields=["image"])
    dataset = FastDataset(tmp_path / "text.lmdb", fields=["txt", "label"], filter=lambda columns: columns.label > 0)
    assert list(dataset) == [{"txt": "line 1", "label": 1}, {"txt": "line 2", "label": 2}]
    assert (dataset.locate(np.array([0])).file == ABSENT).all()  # a depth map is not taken for the image
    write_folder(tmp_path / "b", IMAGES[:3])
    with open_writer(tmp_path / "c.lmdb", classes=CLASSES) as writer:
        writer.write({"cls": 1, "depth.png": save(Image.fromarray(photo(5, 4, 0)), "PNG")})
    both = FastDataset([tmp_path / "b", tmp_path / "c.lmdb"], fields=["image", "depth.png"])
    assert both[0]["depth.png"] is None
    with pytest.raises(DecodeError, match=r"c\.lmdb: 00000000: "):
        both[3]


def test_a_folder(tmp_path: Path) -> None:
    dataset = FastDataset(write_folder(tmp_path / "b", IMAGES), fields=["json", "label", "key", "jpg"])
    assert dataset[5] == {"json": {"path": "cat/00005.jpg"}, "label": 2, "key": "00000005", "jpg": IMAGES[5]}
