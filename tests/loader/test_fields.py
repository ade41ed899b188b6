"""Fields: payload to value, the values of a batch to a tensor, and samples as dictionaries of the chosen ones."""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import exif, jpeg, photo, save
from loader_sets import CLASSES, photographs, upright, write_folder
from PIL import Image

from iofast import FastDataset, fields, open_writer
from iofast.containers.base import Failures
from iofast.containers.columns import ABSENT
from iofast.errors import ContainerError, DecodeError, OptionError
from iofast.fields import collate, decode_field


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    out = BytesIO()
    np.lib.format.write_array(out, array, version, allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "payload", "value"),
    [
        ("json", b'{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ("boxes.json", b"[]", []),
        ("cls", b"17", 17),
        ("txt", "größe".encode(), "größe"),
        ("caption.text", b"", ""),
        ("anything", b"\xff\x00", b"\xff\x00"),
        ("jpg", b"no image", b"no image"),  # the record's own: "image" is its pixels
        *((name, pickle.dumps([1]), pickle.dumps([1])) for name in ("pkl", "a.pyd", "a.pickle", "a.pth")),
    ],
)
def test_values(name: str, payload: bytes, value: object) -> None:
    found = decode_field(name, payload)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    "array", [np.arange(3, dtype=">i2"), np.array(2.5), np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])]
)
def test_npy(array: np.ndarray[Any, Any]) -> None:
    found = decode_field("mask.npy", npy(array))
    assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, array.shape, True)
    assert (found == array).all()


def claimed(shape: str) -> bytes:
    """A .npy whose header claims any shape, around eight bytes."""
    return npy(np.zeros(8, np.uint8)).replace(b"(8,), }     ", f"{shape}, }}".ljust(12).encode())


@pytest.mark.parametrize(
    ("name", "payload", "message"),
    [
        ("json", b"{", "field json: not JSON: Expecting"),
        ("a.json", b'"\xff"', "field a.json: .*utf-8"),
        ("a.json", b"1" * 5000, "field a.json: "),
        ("txt", b"\xc3\x28", "field txt: .*utf-8"),
        ("cls", b"-1", "class index must be a decimal number, found b'-1'"),
        ("cls", b"99999999999", "class index"),
        ("a.npy", npy(np.array([{}])), "field a.npy: pickled objects are never loaded"),
        ("a.npy", npy(np.zeros(3))[:-1], "have 24 bytes, found 23"),
        ("a.npy", npy(np.zeros(3)) + b"1", "have 24 bytes, found 25"),
        ("a.npy", claimed("(1<<60,)"), "field a.npy"),
        ("a.npy", claimed("(99999999,)"), "have 99999999 bytes, found"),
        ("a.npy", claimed("(-2, -4)"), "shape"),
        ("a.npy", npy(np.zeros(3), (3, 0)), "version"),
        ("a.npy", b"\x93NUMPY", "field a.npy"),
        ("seg.png", b"no image", "field seg.png: not an image"),
        ("seg.png", save(Image.fromarray(photo(9, 9, 0)), "PNG")[:60], "field seg.png: the image is truncated"),
        ("left.jpg", jpeg(photo(9, 9, 0))[:-20], "field left.jpg: the image is truncated"),
    ],
)
def test_what_is_damaged_says_which_field(name: str, payload: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode_field(name, payload)


def test_text_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MAX_TEXT", 10)
    assert decode_field("txt", b"1234567890") == "1234567890"
    with pytest.raises(DecodeError, match="at most 10 bytes, found 11"):
        decode_field("json", b"12345678901")


def test_masks_keep_their_numbers() -> None:
    classes = np.arange(35, dtype=np.uint8).reshape(5, 7)
    palette = Image.fromarray(classes, "L").convert("P")
    palette.putpalette(bytes(255 - i for i in range(256)) * 3)
    deep = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1800
    for image in (Image.fromarray(classes), palette, Image.fromarray(deep)):
        found = decode_field("seg.png", save(image, "PNG"))
        assert np.array_equal(found, np.asarray(image))
    colours = Image.fromarray(photo(12, 7, 3))
    assert decode_field("other.png", save(colours.convert("RGBA"), "PNG")).shape == (7, 12, 4)
    assert (decode_field("other.webp", save(colours, "WEBP", lossless=True)) == photo(12, 7, 3)).all()
    turned = decode_field("left.jpg", jpeg(photo(12, 7, 3), exif=exif(6)))
    assert (turned.shape, turned.dtype) == ((7, 12, 3), np.uint8)


TENSORS: list[tuple[list[Any], torch.Tensor]] = [
    ([1, 2, 3], torch.tensor([1, 2, 3])),
    ([1, 2.5], torch.tensor([1, 2.5])),
    ([True, False], torch.tensor([True, False])),
    ([[1, 0], [0.5, 0.5]], torch.tensor([[1, 0], [0.5, 0.5]])),
    ([[[1, 2, 3, 4]], [[5, 6, 7, 8]]], torch.tensor([[[1, 2, 3, 4]], [[5, 6, 7, 8]]])),
    ([np.ones((2, 3), np.float64)] * 2, torch.ones(2, 2, 3, dtype=torch.float64)),
    ([np.full(2, 60_000, np.uint16)], torch.full((1, 2), 60_000, dtype=torch.int32)),
    ([np.arange(3, dtype=">i4")], torch.arange(3, dtype=torch.int32)[None]),
    ([torch.ones(2), torch.zeros(2)], torch.tensor([[1.0, 1.0], [0.0, 0.0]])),
]
LISTS: list[list[Any]] = [
    *(
        [],
        ["a", "b"],
        [[], []],
        [b"1", b"2"],
        [1, None],
        [{"x": 1}, {"x": 2}],
        [True, 2],
        [1 << 70],
        [[1, "a"], [2, "b"]],
    ),
    *([[1, 2], [1, 2, 3]], [[[1, 2]], [[1, 2], [3, 4]]], [[1, [2]], [1, [2]]], [np.array(["text"])]),
    *([np.zeros(2), np.zeros(3)], [np.zeros(2, np.uint8), np.zeros(2, np.int64)], [torch.zeros(2), torch.zeros(3)]),
]


@pytest.mark.parametrize(("values", "expected"), TENSORS, ids=lambda value: str(value)[:30])
def test_collate_to_a_tensor(values: list[Any], expected: torch.Tensor) -> None:
    found = collate(values)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("values", LISTS, ids=lambda value: str(value)[:30])
def test_collate_to_a_list(values: list[Any]) -> None:
    found = collate(tuple(values))
    assert isinstance(found, list)
    assert all(own is value for own, value in zip(found, values, strict=True))


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
        ({"fields": "image"}, "must be a list of names, each once, found 'image'"),
        ({"fields": ["image", "image"]}, "each once"),
        ({"path": None}, "path must be a path, or a list of paths, found None"),
    ],
)
def test_wrong_options(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        FastDataset(**{"path": path, "fields": ["label"]} | options)


def test_other_fields_are_not_read(tmp_path: Path) -> None:
    """All bytes of the images, masks and boxes are overwritten."""
    path = write(tmp_path / "ruined.lmdb")
    reader = FastDataset(path).reader
    with path.open("r+b") as file:
        for field in ("jpg", "seg.png", "boxes.json"):
            located = reader.locate(np.arange(6), field)
            for offset, length in zip(located.offset.tolist(), located.length.tolist(), strict=True):
                file.seek(offset)
                file.write(bytes(length))
    dataset = FastDataset(path, fields=["label", "key", "soft.json", "txt"])
    assert [sample["soft.json"] for sample in dataset] == SOFT
    with pytest.raises(DecodeError, match=r"ruined\.lmdb: 00000000: .*CRC32C"):
        FastDataset(path, fields=["image"])[0]
    with pytest.raises(ContainerError, match=r"ruined\.lmdb: 00000002: seg\.png at offset \d+ is damaged"):
        FastDataset(path, fields=["seg.png"])[2]
    dataset, indices = FastDataset(path, fields=["image", "seg.png"]), np.array([1, 4])
    located = dataset.locate(indices)
    failed: Failures = {}
    assert dataset.values("seg.png", indices, located, failed=failed) == [None, None]
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
    folder = FastDataset(write_folder(tmp_path / "b", IMAGES[:3]), fields=["json", "label", "key", "jpg"])
    assert folder[2] == {"json": {"path": "cat/00002.jpg"}, "label": 2, "key": "00000002", "jpg": IMAGES[2]}
    with open_writer(tmp_path / "c.lmdb", classes=CLASSES) as writer:
        writer.write({"cls": 1, "depth.png": save(Image.fromarray(photo(5, 4, 0)), "PNG")})
    both = FastDataset([tmp_path / "b", tmp_path / "c.lmdb"], fields=["image", "depth.png"])
    assert both[0]["depth.png"] is None
    with pytest.raises(DecodeError, match=r"c\.lmdb: 00000000: "):
        both[3]
