"""Fields: payload to value, and the values of a batch to a tensor."""

from __future__ import annotations

import json
import pickle
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import exif, jpeg, photo, save
from PIL import Image

from iofast import fields
from iofast.errors import DecodeError
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
        ("coarse.cls", b"0", 0),
        ("txt", "größe".encode(), "größe"),
        ("caption.text", b"", ""),
        ("anything", b"\xff\x00", b"\xff\x00"),
        ("score", b"0.5", b"0.5"),
        ("jpg", b"no image", b"no image"),  # the record's own: "image" is its pixels
        ("rgb", b"123", b"123"),
        *((name, pickle.dumps([1]), pickle.dumps([1])) for name in ("pkl", "a.pyd", "a.pickle", "a.pth")),
    ],
)
def test_values(name: str, payload: bytes, value: object) -> None:
    found = decode_field(name, payload)
    assert (type(found), found) == (type(value), value)


ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.asfortranarray(np.arange(12).reshape(3, 4)),
    np.array(2.5),
    np.zeros((0, 4), np.uint8),
    np.arange(3, dtype=">i2"),
    np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_npy(array: np.ndarray[Any, Any], version: tuple[int, int]) -> None:
    found = decode_field("mask.npy", npy(array, version))
    assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, array.shape, True)
    assert (found == array).all()


def claimed(shape: str) -> bytes:
    """A .npy whose header claims any shape, around eight bytes."""
    return npy(np.zeros(8, np.uint8)).replace(b"(8,), }     ", f"{shape}, }}".ljust(12).encode())


@pytest.mark.parametrize(
    ("name", "payload", "message"),
    [
        ("json", b"{", "field json: Expecting"),
        ("a.json", b'"\xff"', "field a.json: .*utf-8"),
        ("a.json", b"[" * 100_000, "field a.json: "),
        ("a.json", b"1" * 5000, "field a.json: "),
        ("txt", b"\xc3\x28", "field txt: .*utf-8"),
        ("cls", b"-1", "class index must be a decimal number, found b'-1'"),
        ("cls", b"", "class index"),
        ("cls", b"99999999999", "class index"),
        ("a.npy", npy(np.array([{}])), "field a.npy: pickled objects are never loaded"),
        ("a.npy", npy(np.zeros(3))[:-1], "have 24 bytes, found 23"),
        ("a.npy", npy(np.zeros(3)) + b"1", "have 24 bytes, found 25"),
        ("a.npy", claimed("(1<<60,)"), "field a.npy"),
        ("a.npy", claimed("(9**9,9**9)"), "field a.npy"),
        ("a.npy", claimed("(99999999,)"), "have 99999999 bytes, found"),
        ("a.npy", claimed("(-2, -4)"), "shape"),
        ("a.npy", npy(np.zeros(3), (3, 0)), "version"),
        ("a.npy", b"\x93NUMPY", "field a.npy"),
        ("a.npy", b"", "field a.npy"),
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
    for name in ("txt", "json"):
        with pytest.raises(DecodeError, match="at most 10 bytes, found 11"):
            decode_field(name, b"12345678901")


def test_masks_keep_their_numbers() -> None:
    classes = np.arange(35, dtype=np.uint8).reshape(5, 7)
    palette = Image.fromarray(classes, "L").convert("P")
    palette.putpalette(bytes(255 - i for i in range(256)) * 3)
    deep = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1800
    for image in (Image.fromarray(classes), palette, Image.fromarray(deep)):
        found = decode_field("seg.png", save(image, "PNG"))
        assert (found == np.asarray(image)).all()
        assert found.shape == (5, 7)
    assert decode_field("seg.png", save(Image.fromarray(deep), "PNG")).max() == 34 * 1800
    colours = Image.fromarray(photo(12, 7, 3))
    assert decode_field("other.png", save(colours.convert("RGBA"), "PNG")).shape == (7, 12, 4)
    assert (decode_field("other.webp", save(colours, "WEBP", lossless=True)) == photo(12, 7, 3)).all()
    turned = decode_field("left.jpg", jpeg(photo(12, 7, 3), exif=exif(6)))
    assert (turned.shape, turned.dtype) == ((7, 12, 3), np.uint8)


TENSORS: list[tuple[list[Any], torch.Tensor]] = [
    ([1, 2, 3], torch.tensor([1, 2, 3])),
    ([1.5, 2.0], torch.tensor([1.5, 2.0])),
    ([1, 2.5], torch.tensor([1, 2.5])),
    ([True, False], torch.tensor([True, False])),
    ([[0.25, 0.75], [1.0, 0.0]], torch.tensor([[0.25, 0.75], [1.0, 0.0]])),
    ([[1, 0], [0.5, 0.5]], torch.tensor([[1, 0], [0.5, 0.5]])),
    ([[[1, 2, 3, 4]], [[5, 6, 7, 8]]], torch.tensor([[[1, 2, 3, 4]], [[5, 6, 7, 8]]])),
    ([np.ones((2, 3), np.float64)] * 2, torch.ones(2, 2, 3, dtype=torch.float64)),
    ([np.full(2, 60_000, np.uint16)], torch.full((1, 2), 60_000, dtype=torch.int32)),
    ([np.arange(3, dtype=">i4")], torch.arange(3, dtype=torch.int32)[None]),
    ([torch.ones(2), torch.zeros(2)], torch.tensor([[1.0, 1.0], [0.0, 0.0]])),
]


@pytest.mark.parametrize(("values", "expected"), TENSORS, ids=lambda value: str(value)[:30])
def test_collate_to_a_tensor(values: list[Any], expected: torch.Tensor) -> None:
    found = collate(values)
    assert isinstance(found, torch.Tensor)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["a", "b"],
        [[], []],
        [b"1", b"2"],
        [1, None],
        [None, None],
        [{"x": 1}, {"x": 2}],
        [[1, 2], [1, 2, 3]],
        [[[1, 2]], [[1, 2], [3, 4]]],
        [["cat"], ["dog"]],
        [[1, "a"], [2, "b"]],
        [[1, [2]], [1, [2]]],
        [True, 2],
        [1 << 70],
        [np.zeros(2), np.zeros(3)],
        [np.zeros(2, np.uint8), np.zeros(2, np.int64)],
        [np.array(["text"])],
        [torch.zeros(2), torch.zeros(3)],
    ],
    ids=lambda value: str(value)[:30],
)
def test_collate_to_a_list(values: list[Any]) -> None:
    found = collate(tuple(values))
    assert isinstance(found, list)
    assert all(own is value for own, value in zip(found, values, strict=True))


def test_soft_labels_of_a_batch() -> None:
    rng = np.random.default_rng(0)
    soft = rng.random((64, 1000))
    found = collate([decode_field("soft.json", json.dumps(row.tolist()).encode()) for row in soft])
    assert (found.dtype, found.shape) == (torch.float32, (64, 1000))
    assert torch.equal(found, torch.from_numpy(soft.astype(np.float32)))
