"""Masks, boxes and keypoints that follow their images through a loader's transform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import extent, jpeg, save
from PIL import Image

from iofast import FastDataset, FastLoader, open_writer
from iofast import transforms as T
from iofast.errors import DecodeError, OptionError

N, FEW = 12, 6
FIELDS = ["image", "label", "boxes.json", "seg.png", "points.json", "objects.json"]
TARGETS = {"boxes.json": "boxes", "seg.png": "mask", "points.json": "keypoints", "objects.json": "boxes:xywh"}
FLIP = T.RandomHorizontalFlip()


def png(mask: Any) -> bytes:
    return save(Image.fromarray(mask), "PNG")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark pictures, each with a bright rectangle: its box, mask, corners, and an object with another box far off."""
    place = tmp_path_factory.mktemp("targets") / "set.lmdb"
    rng = np.random.default_rng(2)
    with open_writer(place) as writer:
        for number in range(N):
            width, height = (110, 130) if number % 2 else (130, 110)
            x, y, wide, high = (int(rng.integers(30, 50)) for _ in range(4))
            image = np.zeros((height, width, 3), np.uint8)
            image[y : y + high, x : x + wide] = 255
            objects = {"boxes": [[x, y, wide, high], [1, 1, 2, 2]], "names": ["bright", "corner"]}
            writer.write(
                {
                    "jpg": jpeg(image, quality=98),
                    "cls": number,
                    "boxes.json": [[x, y, x + wide, y + high]],
                    "seg.png": png(image[..., 0] // 255),
                    "points.json": [[x, y], [x + wide, y + high]],
                    "objects.json": objects,
                }
            )
    return place


def test_points_are_corners_of_the_box(path: Path) -> None:
    transform = [T.RandomResizedCrop(96, scale=(0.9, 1)), FLIP]
    for batch in FastLoader(FastDataset(path, fields=FIELDS), 4, targets=TARGETS, transform=transform):
        for boxes, points in zip(batch["boxes.json"], batch["points.json"], strict=True):
            corners = np.sort(torch.as_tensor(points).numpy(), axis=0).clip(0, 96)
            np.testing.assert_allclose(corners.ravel(), boxes[0].numpy(), atol=0.01)


@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_of_images_of_several_sizes(path: Path, ragged: Any) -> None:
    dataset = FastDataset(path, fields=["image", "seg.png"])
    options: dict[str, Any] = {"transform": [T.RandomShortestSize([40, 60]), FLIP], "ragged": ragged}
    for batch in FastLoader(dataset, 6, targets={"seg.png": "mask:255"}, **options):
        assert ragged == "list" or batch["seg.png"].shape == batch["image"][:, 0].shape
        for row, (image, mask) in enumerate(zip(batch["image"], batch["seg.png"], strict=True)):
            height, width = batch["size"][row].tolist() if ragged == "pad" else image.shape[1:]
            assert set(mask[:height, :width].unique().tolist()) == {0, 1}
            assert (mask[height:] == 255).all()
            assert (mask[:, width:] == 255).all()


def test_what_lies_outside_is_filled(path: Path) -> None:
    options: dict[str, Any] = {"targets": {"seg.png": "mask:255"}, "transform": [T.CenterCrop(150, pad_if_needed=True)]}
    batch = next(iter(FastLoader(FastDataset(path, fields=["image", "seg.png"]), 4, **options)))
    assert batch["seg.png"].shape == (4, 150, 150)
    assert (batch["seg.png"][:, 0] == 255).all()
    assert set(batch["seg.png"].unique().tolist()) == {0, 1, 255}


def test_one_that_cannot_follow_is_a_failure_of_its_sample(tmp_path: Path) -> None:
    place = tmp_path / "set.lmdb"
    with open_writer(place) as writer:
        for number in range(4):
            image, mask = np.zeros((40, 50, 3), np.uint8), np.zeros((40, 50 if number else 51), np.uint8)
            writer.write(
                {"jpg": jpeg(image), "seg.png": png(mask), "boxes.json": {"none": 1} if number == 1 else [[1, 1, 9, 9]]}
            )
    dataset = FastDataset(place, fields=["image", "seg.png", "boxes.json"])
    options: dict[str, Any] = {"targets": {"seg.png": "mask", "boxes.json": "boxes"}, "transform": [T.CenterCrop(32)]}
    with pytest.raises(DecodeError, match=r"seg.png: a mask must have the size of its image, 50 x 40, found 51 x 40"):
        list(FastLoader(dataset, 1, **options))
    loader = FastLoader(dataset, 2, on_error="drop", **options)
    assert sum(len(batch["image"]) for batch in loader) == 3
    assert "no list of numbers" in " ".join(failure.reason for failure in loader.failures)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ({"seg.png": "masks"}, "must be mask, mask:255, boxes"),
        ({"seg.png": "mask:x"}, "must be mask"),
        ({"other.png": "mask"}, "must name stored fields of the dataset"),
        ("seg.png", "must map fields"),
        ({"seg.png": "mask"}, "name them in targets="),  # the others would stay
    ],
)
def test_wrong_targets(path: Path, targets: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        FastLoader(FastDataset(path, fields=FIELDS), 4, targets=targets, transform=[T.CenterCrop(32)])


SIZES, SHARES = st.integers(48, 110), st.floats(0, 1)
FITTED = st.tuples(SIZES, SIZES).map(T.Resize)
BEGINNINGS: st.SearchStrategy[list[Any]] = st.one_of(
    st.builds(
        T.RandomResizedCrop, SIZES, st.just((0.3, 1.0)), style=st.sampled_from(["torchvision", "tensorflow"])
    ).map(lambda crop: [crop]),
    st.tuples(FITTED),
    st.tuples(st.builds(T.Resize, SIZES), st.builds(T.RandomCrop, SIZES, st.integers(0, 20), st.just(True))),
    st.tuples(
        st.builds(T.ScaleJitter, SIZES, st.just((0.5, 2.0))),
        st.builds(T.CenterCrop, SIZES, pad_if_needed=st.just(True)),
    ),
    st.tuples(
        st.builds(T.ResizeKeepRatio, SIZES, SHARES, random_aspect_prob=SHARES, random_scale_prob=SHARES),
        st.builds(T.RandomCrop, SIZES, pad_if_needed=st.just(True)),
    ),
    st.tuples(FITTED, st.builds(T.Pad, st.integers(0, 30))),
).map(list)
WAYS = st.sampled_from(["nearest", "bilinear"])
MOVES: st.SearchStrategy[Any] = st.one_of(
    st.builds(T.RandomHorizontalFlip, SHARES),
    st.builds(T.RandomVerticalFlip, SHARES),
    st.builds(T.RandomRotation, st.floats(0, 60), WAYS),
    st.builds(T.RandomAffine, st.floats(0, 20), st.just((0.1, 0.1)), st.just((0.8, 1.2)), st.floats(0, 10), WAYS),
    st.builds(T.RandomPerspective, st.floats(0, 0.3), SHARES, WAYS),
    st.just(T.ColorJitter(0.1)),
)


def wider(mask: torch.Tensor, by: int) -> torch.Tensor:
    """Where there is something of a bool mask (N, H, W) within `by` pixels."""
    return torch.nn.functional.max_pool2d(mask.float()[:, None], 2 * by + 1, 1, by)[:, 0] > 0


@given(BEGINNINGS, st.lists(MOVES, max_size=3), st.integers(0, 1 << 20))
def test_they_stay_with_the_image_whatever_moves_it(path: Path, first: list[Any], moves: list[Any], seed: int) -> None:
    """Within a pixel for the resampling and one for each move."""
    dataset, transform = FastDataset(path, fields=FIELDS, indices=range(FEW)), [*first, *moves]
    loader = FastLoader(dataset, FEW, targets=TARGETS, transform=transform, seed=seed, num_workers=0)
    batch, near = next(iter(loader)), 2 + len(moves)
    assert batch["seg.png"].dtype == torch.uint8
    bright, mask = batch["image"][:, 1] > 127, batch["seg.png"] > 0
    beside = (bright & ~wider(mask, near)) | (mask & ~wider(~mask, near) & ~bright)
    assert beside.float().mean() < 0.002
    for row in range(FEW):
        boxes = batch["boxes.json"][row].numpy()
        kept = ~wider(~mask[row : row + 1], 1)[0].numpy()
        if not kept.any():
            continue
        left, top, right, low = extent(kept)
        if not len(boxes):  # only where hardly anything is left
            assert min(right - left, low - top) < 3
            continue
        assert (boxes[0, :2] <= np.array([left, top]) + near).all()
        assert (boxes[0, 2:] >= np.array([right, low]) - near).all()
        objects = batch["objects.json"][row]
        assert objects["names"][0] == "bright"
        x, y, wide, high = objects["boxes"][0]
        np.testing.assert_allclose([x, y, x + wide, y + high], boxes[0], atol=0.01)
        points = torch.as_tensor(batch["points.json"][row]).numpy()
        inside = ((points >= 0) & (points <= np.array(mask.shape[:0:-1]))).all(axis=1)
        for x, y in points[inside]:
            x0, y0, x1, y1 = boxes[0]
            assert x0 - 0.01 <= x <= x1 + 0.01
            assert y0 - 0.01 <= y <= y1 + 0.01
