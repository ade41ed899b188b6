"""Masks, boxes and points beside images that a loader crops: refused, or moved by means of `crop`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import exif, extent, jpeg, save
from PIL import Image
from places import ROOT
from torch.utils.data import DataLoader

from iofast import FastDataset, FastLoader, open_writer, order, pack
from iofast import transforms as T
from iofast.errors import OptionError
from iofast.loader.options import Sample
from iofast.transforms.crop_box import CropBox

LOAD = ROOT / "docs" / "load-reference.md"
N = 16
FIELDS = ["image", "label", "boxes.json", "seg.png", "crop"]
FLIP = T.RandomHorizontalFlip()
BUCKETS = [(32, 48), (48, 32)]
SHOWN = ("image", "boxes.json", "seg.png", "crop")
LISTS: dict[str, Any] = {"boxes.json": list, "seg.png": list}


def marked(number: int) -> tuple[Image.Image, list[int]]:
    """A dark upright picture with a bright rectangle, and that rectangle's box."""
    rng = np.random.default_rng(number)
    width, height = (90, 120) if number % 2 else (120, 90)
    x, y = int(rng.integers(10, 50)), int(rng.integers(10, 50))
    box = [x, y, x + int(rng.integers(20, 40)), y + int(rng.integers(20, 40))]
    image = Image.new("RGB", (width, height))
    image.paste((255, 255, 255), tuple(box))
    return image, box


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rectangles with their boxes and masks; every second image lies on its side and has to be turned."""
    place = tmp_path_factory.mktemp("crop") / "set.lmdb"
    with open_writer(place) as writer:
        for number in range(N):
            image, box = marked(number)
            mask = Image.fromarray(np.asarray(image)[..., 0] // 255)
            stored = image.transpose(Image.Transpose.ROTATE_90) if number % 4 > 1 else image
            tag = {"exif": exif(6)} if number % 4 > 1 else {}
            fields = {"jpg": jpeg(np.asarray(stored), quality=98, **tag), "cls": number, "boxes.json": [box]}
            writer.write(fields | {"seg.png": save(mask, "PNG")})
    return place


def documented(name: str) -> Any:
    """The function of this name in load-reference.md."""
    (source,) = re.findall(rf"^def {name}\(.*?(?=^\S)", LOAD.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"np": np, "torch": torch}
    exec(source, names)
    return names[name]


boxes_follow = documented("boxes_follow")


def moved(sample: Sample, rng: np.random.Generator) -> Sample:
    """Boxes and mask, moved as in load-reference.md."""
    crop = sample["crop"]
    mask = Image.fromarray(sample["seg.png"]).resize(crop.size, Image.Resampling.NEAREST, crop.box)
    mask = mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if crop.flip else mask
    return boxes_follow(sample, rng) | {"seg.png": torch.from_numpy(np.array(mask))}


class TestCrop:
    @pytest.mark.parametrize(
        "options",
        [
            {"transform": [T.RandomResizedCrop(64, scale=(0.3, 1)), FLIP]},
            {"transform": [T.Resize((40, 70)), FLIP]},
            {"transform": [T.Resize(70), T.CenterCrop(64)]},
            {"transform": [T.Resize(77), T.RandomCrop((60, 50)), FLIP]},
            {"transform": [FLIP], "ragged": "list"},
            {"transform": [T.ResizeToBucket(BUCKETS), FLIP], "order": order.Buckets(BUCKETS)},
        ],
        ids=["crop", "resize", "center", "window", "flip", "buckets"],
    )
    def test_moves_boxes_and_masks_with_the_image(self, path: Path, options: dict[str, Any]) -> None:
        loader = FastLoader(FastDataset(path, fields=FIELDS), 4, seed=1, map_sample=moved, collate=LISTS, **options)
        flips = seen = 0
        for batch in loader:
            for image, boxes, mask, crop in zip(*(batch[name] for name in SHOWN), strict=True):
                assert crop.size == (image.shape[2], image.shape[1])
                bright = (image[1] > 128).numpy()
                assert (bright ^ mask.numpy().astype(bool)).mean() < 0.02 + 2 / min(crop.size)
                flips += crop.flip
                if bright.any() and len(boxes):
                    assert np.abs(boxes[0].numpy() - extent(bright)).max() < 2
                    seen += 1
        assert seen > N // 2
        assert flips or FLIP not in options["transform"]

    def test_boxes_are_upright(self, path: Path) -> None:
        dataset = FastDataset(path, fields=["crop", "image"])
        assert dataset[0]["crop"] == CropBox((0, 0, 120, 90), (120, 90))
        assert dataset[3]["crop"] == CropBox((0, 0, 90, 120), (90, 120), False, 6)
        whole = next(iter(DataLoader(FastDataset(path, fields=["crop"]), N)))["crop"]
        assert [each.tolist() for each in whole.size] == [[120, 90] * (N // 2), [90, 120] * (N // 2)]
        (batch,) = FastLoader(dataset, N, transform=[T.CenterCrop(60)])
        assert batch["crop"][0] == CropBox((30, 15, 90, 75), (60, 60))
        assert batch["crop"][3] == CropBox((15, 30, 75, 90), (60, 60), False, 6)

    def test_is_the_same_for_a_dataset_in_device_memory(self, path: Path) -> None:
        dataset, transform = FastDataset(path, fields=["image", "crop"]), [T.RandomResizedCrop(32), FLIP]
        crops: list[list[CropBox]] = [
            [crop for batch in FastLoader(dataset, 5, transform=transform, cache=cache) for crop in batch["crop"]]
            for cache in (None, "device")
        ]
        assert crops[0] == crops[1]
        assert len({crop.box for crop in crops[0]}) == N


class TestWithoutIt:
    @pytest.mark.parametrize("step", [T.RandomResizedCrop(32), T.Resize((32, 32)), T.CenterCrop(32), FLIP], ids=repr)
    def test_what_would_stay_is_refused(self, path: Path, step: T.Transform) -> None:
        beside = ["label", "seg.png", "boxes.json"]
        with pytest.raises(
            OptionError, match=r"^seg.png and boxes.json would stay as stored, beside .*'crop'"
        ) as caught:
            FastLoader(FastDataset(path, fields=["image", *beside]), 4, transform=[step], ragged="list")
        assert repr(step) in str(caught.value)
        for name in beside[1:]:
            with pytest.raises(OptionError, match=f"^{name} would stay"):
                FastLoader(FastDataset([path, path], fields=["image", name]), transform=[step])
        FastLoader(FastDataset(path, fields=beside), 4, transform=[step])  # no image
        FastLoader(FastDataset(path, fields=["image", *beside]), 4, transform=[T.Grayscale()], dtype=torch.float32)

    def test_the_recipe_names_boxes_and_points(self, tmp_path: Path) -> None:
        image, box = marked(0)
        (tmp_path / "images").mkdir()
        image.save(tmp_path / "images" / "a.jpg")
        for name, value in (("places", [box]), ("joints", [[1, 2, 2]]), ("other", {"any": "thing"})):
            (tmp_path / "images" / f"a.{name}.json").write_text(json.dumps(value))
        options: Any = {"boxes": "places.json", "keypoints": "joints.json", "workers": 1}
        pack(tmp_path / "images", tmp_path / "set.lmdb", fields="places.json,joints.json,other.json", **options)
        fields = ["other.json", "joints.json", "image", "places.json"]
        dataset = FastDataset(tmp_path / "set.lmdb", fields=fields)
        assert dataset.annotations == (dataset + dataset).annotations == ["joints.json", "places.json"]
        assert FastDataset(tmp_path / "set.lmdb").annotations == []

    @pytest.mark.parametrize(
        ("recipe", "found"),
        [
            ({"boxes": ["txt"]}, []),
            ({"boxes": 3, "keypoints": "txt"}, ["txt"]),
            ({"boxes": None}, []),
        ],
    )
    def test_recipes_of_any_shape(self, tmp_path: Path, recipe: dict[str, Any], found: list[str]) -> None:
        with open_writer(tmp_path / "any.lmdb", recipe=recipe) as writer:
            writer.write({"txt": "x"})
        assert FastDataset(tmp_path / "any.lmdb", fields=["txt"]).annotations == found
