"""Masks, boxes and keypoints beside images: refused, moved by means of `crop`, or by `targets`."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import exif, extent, jpeg, save
from PIL import Image
from places import ROOT
from torch.utils.data import DataLoader

from iofast import FastDataset, FastLoader, open_writer, order, pack
from iofast import transforms as T
from iofast.errors import DecodeError, OptionError
from iofast.transforms.crop_box import CropBox

FEW = 6
ANNOTATED = ["image", "label", "boxes.json", "seg.png", "points.json", "objects.json"]
TARGETS = {"boxes.json": "boxes", "seg.png": "mask", "points.json": "keypoints", "objects.json": "boxes:xywh"}
FLIP = T.RandomHorizontalFlip()


def png(mask: Any) -> bytes:
    return save(Image.fromarray(mask), "PNG")


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
    assert (batch["seg.png"][:, 0] == 255).all()
    assert set(batch["seg.png"].unique().tolist()) == {0, 1, 255}


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_beyond_the_edges_a_mask_has_what_its_image_has(tmp_path: Path, mode: Any) -> None:
    levels = np.arange(20 * 24, dtype=np.uint8).reshape(20, 24)
    with open_writer(tmp_path / "set.lmdb") as writer:
        writer.write({"png": png(levels), "seg.png": png(levels)})
    dataset = FastDataset(tmp_path / "set.lmdb", fields=["image", "seg.png"], indices=[0] * 8)
    crop = T.RandomCrop((26, 30), padding=(7, 9, 8, 6), padding_mode=mode)
    batch = next(iter(FastLoader(dataset, 8, transform=[crop], targets={"seg.png": "mask"})))
    assert torch.equal(batch["seg.png"], batch["image"][:, 0])
    assert (batch["seg.png"] != batch["seg.png"][0]).any(), "the crops differ"


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
        ({"other.png": "mask"}, "must name stored fields of the dataset"),
        ("seg.png", "must map fields"),
        ({"seg.png": "mask"}, "name them in targets="),  # the others would stay
    ],
)
def test_wrong_targets(path: Path, targets: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        FastLoader(FastDataset(path, fields=ANNOTATED), 4, targets=targets, transform=[T.CenterCrop(32)])


SHARES = st.floats(0, 1)
BEGINNINGS: st.SearchStrategy[list[Any]] = st.sampled_from(
    [
        [T.RandomResizedCrop(90, (0.3, 1.0))],
        [T.RandomResizedCrop(60, (0.3, 1.0), style="tensorflow")],
        [T.Resize((70, 110)), T.Pad(20)],
        [T.Resize(80), T.RandomCrop(90, 20, True)],
        [T.ScaleJitter(80, (0.5, 2.0)), T.CenterCrop(100, pad_if_needed=True)],
        [
            T.ResizeKeepRatio(90, 0.5, random_aspect_prob=0.5, random_scale_prob=0.5),
            T.RandomCrop(70, pad_if_needed=True),
        ],
    ]
)
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
    dataset, transform = FastDataset(path, fields=ANNOTATED, indices=range(FEW)), [*first, *moves]
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


LOAD = ROOT / "docs" / "load-reference.md"
N = 16
BUCKETS = [(32, 48), (48, 32)]


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
    """Rectangles with their boxes, masks and corners; every second image lies on its side and has to be turned."""
    place = tmp_path_factory.mktemp("crop") / "set.lmdb"
    with open_writer(place) as writer:
        for number in range(N):
            image, box = marked(number)
            mask = Image.fromarray(np.asarray(image)[..., 0] // 255)
            stored = image.transpose(Image.Transpose.ROTATE_90) if number % 4 > 1 else image
            tag = {"exif": exif(6)} if number % 4 > 1 else {}
            fields = {"jpg": jpeg(np.asarray(stored), quality=98, **tag), "cls": number, "boxes.json": [box]}
            (x0, y0, x1, y1), far = box, [1, 1, 2, 2]
            objects = {"boxes": [[x0, y0, x1 - x0, y1 - y0], far], "names": ["bright", "corner"]}
            points = {"points.json": [[x0, y0], [x1, y1]], "objects.json": objects}
            writer.write(fields | {"seg.png": save(mask, "PNG")} | points)
    return place


def documented(name: str) -> Any:
    """The function of this name in load-reference.md."""
    (source,) = re.findall(rf"^def {name}\(.*?(?=^\S)", LOAD.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"np": np, "torch": torch}
    exec(source, names)
    return names[name]


boxes_follow = documented("boxes_follow")


class TestCrop:
    @pytest.mark.parametrize(
        "options",
        [
            {"transform": [T.RandomResizedCrop(64, scale=(0.3, 1)), FLIP]},
            {"transform": [T.Resize(70), T.CenterCrop(64)]},
            {"transform": [T.Resize(77), T.RandomCrop((60, 50)), FLIP]},
            {"transform": [T.ResizeToBucket(BUCKETS), FLIP], "order": order.Buckets(BUCKETS)},
        ],
        ids=["crop", "center", "window", "buckets"],
    )
    def test_moves_boxes_with_the_image(self, path: Path, options: dict[str, Any]) -> None:
        dataset, boxes = FastDataset(path, fields=["image", "boxes.json", "crop"]), {"boxes.json": list}
        loader = FastLoader(dataset, 4, seed=1, map_sample=boxes_follow, collate=boxes, **options)
        flips = seen = 0
        for batch in loader:
            for image, boxes, crop in zip(*(batch[name] for name in dataset.fields), strict=True):
                assert crop.size == (image.shape[2], image.shape[1])
                bright = (image[1] > 128).numpy()
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


class TestWithoutIt:
    @pytest.mark.parametrize("step", [T.Resize((32, 32)), FLIP], ids=repr)
    def test_what_would_stay_is_refused(self, path: Path, step: T.Transform) -> None:
        beside = ["label", "seg.png", "boxes.json"]
        stay = f"^seg.png and boxes.json would stay as stored, beside .*{re.escape(repr(step))}.*'crop'"
        with pytest.raises(OptionError, match=stay):
            FastLoader(FastDataset(path, fields=["image", *beside]), 4, transform=[step], ragged="list")
        with pytest.raises(OptionError, match=r"^seg\.png would stay"):
            FastLoader(FastDataset([path, path], fields=["image", "seg.png"]), transform=[step])
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
        recipes: list[tuple[dict[str, Any], list[str]]] = [
            ({"boxes": ["txt"]}, []),
            ({"boxes": 3, "keypoints": "txt"}, ["txt"]),
        ]
        for recipe, found in recipes:  # of any shape
            with open_writer(tmp_path / f"{len(found)}.lmdb", recipe=recipe) as writer:
                writer.write({"txt": "x"})
            assert FastDataset(tmp_path / f"{len(found)}.lmdb", fields=["txt"]).annotations == found
