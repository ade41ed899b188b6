"""RandomZoomOut, RandomIoUCrop and Pad: windows of an image before it is resized, and beyond its edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import jpeg
from PIL import Image

from iofast import FastDataset, FastLoader, open_writer, pack
from iofast import transforms as T
from iofast.choices import Draw
from iofast.errors import OptionError

N = 400
MANY = Draw(5, 2, np.arange(N))
FIELDS = ["image", "index", "boxes.json"]
BOXES = {"boxes.json": "boxes"}


def columns(width: float, height: float) -> tuple[Any, Any]:
    return np.full(N, width), np.full(N, height)


class TestZoomOut:
    def test_the_image_lies_somewhere_in_a_larger_one(self) -> None:
        x, y, w, h = T.RandomZoomOut(side_range=(1, 4), p=0.75).windows(MANY, *columns(120, 90))
        assert max(x.max(), y.max()) <= 0
        assert (x + w).min() >= 120
        assert (y + h).min() >= 90
        assert (w / 120).max() < 4
        assert np.abs(w / h - 120 / 90).max() < 0.02
        zoomed = w > 120
        assert zoomed.mean() == pytest.approx(0.75, abs=0.06)
        assert (w[zoomed] / 120).mean() == pytest.approx(2.5, abs=0.2)
        assert (-x[zoomed] / (w[zoomed] - 120)).mean() == pytest.approx(0.5, abs=0.1)

    @pytest.mark.parametrize("name", ["jpg", "rgb"])
    def test_pixels_are_those_of_a_pasted_image(self, tmp_path: Path, name: str) -> None:
        """Of a smooth image: the window is rounded to pixels of the output."""
        y, x = np.mgrid[:64, :96]
        image = np.stack((2 * x, 3 * y, x + y), axis=2).astype(np.uint8)
        with open_writer(tmp_path / "one.lmdb") as writer:
            about = {"json": {"width": 96, "height": 64}} if name == "rgb" else {}
            for _ in range(8):
                writer.write({name: image.tobytes() if name == "rgb" else jpeg(image, quality=100), **about})
        zoom = T.RandomZoomOut((1.0, 0.0, 0.0), (2, 3), 1.0)
        loader = FastLoader(FastDataset(tmp_path / "one.lmdb"), 8, transform=[zoom, T.Resize((64, 96))], seed=3)
        (images, _), draw = next(iter(loader)), Draw(3, 0, np.arange(8))
        windows = np.stack(zoom.windows(draw, np.full(8, 96), np.full(8, 64)), axis=1).astype(int)
        for made, (left, top, wide, high) in zip(images, windows.tolist(), strict=True):
            whole = Image.new("RGB", (wide, high), (255, 0, 0))
            whole.paste(Image.fromarray(image), (-left, -top))
            wanted = np.asarray(whole.resize((96, 64), Image.Resampling.BILINEAR)).astype(int)
            differ = np.abs(made.permute(1, 2, 0).numpy().astype(int) - wanted).max(axis=2)
            assert (differ > 12).mean() < 0.06  # a seam of one pixel, and the rest of the same place
            assert (made[0] == 255).any()
            assert (made[1] > 0).any()

    def test_a_resize_to_one_size_must_follow(self) -> None:
        for rest in ([], [T.Resize(64)], [T.RandomResizedCrop(64)]):
            with pytest.raises(OptionError, match=r"must be followed by Resize|cannot follow RandomZoomOut"):
                T.compile([T.RandomZoomOut(), *rest])


def overlaps(box: Any, places: Any) -> Any:
    """Intersection over union of a box with each of `places`; -1 if its middle is outside."""
    x0, y0, x1, y1 = box
    shares = []
    for a, b, c, d in places:
        both = max(0, min(x1, c) - max(x0, a)) * max(0, min(y1, d) - max(y0, b))
        union = (x1 - x0) * (y1 - y0) + (c - a) * (d - b) - both
        inside = x0 < (a + c) / 2 < x1 and y0 < (b + d) / 2 < y1
        shares.append(both / union if inside else -1)
    return np.array(shares)


class TestIoUCrop:
    @given(st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7]), st.integers(1, 4))
    def test_every_part_shows_a_box_well_enough(self, seed: int, option: float, count: int) -> None:
        rng = np.random.default_rng(seed)
        corner = rng.uniform(0, 60, (count, 2))
        places = np.concatenate((corner, corner + rng.uniform(20, 40, (count, 2))), axis=1)
        draw, sides = Draw(seed, 0, np.arange(6)), (np.full(6, 100.0), np.full(6, 110.0))
        x, y, w, h = T.RandomIoUCrop(sampler_options=(option,)).windows(draw, *sides, [places] * 6)
        for left, top, wide, high in zip(x, y, w, h, strict=True):
            whole = (left, top, wide, high) == (0, 0, 100, 110)
            assert whole or overlaps((left, top, left + wide, top + high), places).max() >= option
            assert 0 <= left <= left + wide <= 100
            assert 0 <= top <= top + high <= 110
            assert whole or (30 <= wide <= 100 and 33 <= high <= 110 and 0.5 <= wide / high <= 2)

    def test_images_without_boxes_and_the_last_option_stay_whole(self) -> None:
        none, one = np.zeros((0, 4)), np.array([[10.0, 10, 60, 60]])
        for op, places in ((T.RandomIoUCrop(), none), (T.RandomIoUCrop(sampler_options=[1.0]), one)):
            x, y, w, h = op.windows(MANY, *columns(100, 90), [places] * N)
            for column, value in ((x, 0), (y, 0), (w, 100), (h, 90)):
                assert (column == value).all()
        x, _, w, _ = T.RandomIoUCrop().windows(MANY, *columns(100, 90), [one] * N)
        assert 0.15 < (w == 100).mean() < 0.6


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark pictures with two bright rectangles of different colours and their boxes; every fifth has none."""
    place = tmp_path_factory.mktemp("painted") / "set.lmdb"
    rng = np.random.default_rng(4)
    with open_writer(place) as writer:
        for number in range(40):
            width, height = (150, 110) if number % 2 else (110, 150)
            image, boxes = np.zeros((height, width, 3), np.uint8), []
            for channel in range(2 * (number % 5 > 0)):
                x, y = rng.integers(5, 60, 2)
                wide, high = rng.integers(25, 45, 2)
                image[y : y + high, x : x + wide, channel] = 255
                boxes.append([*map(int, (x, y, x + wide, y + high))])
            writer.write(
                {"jpg": jpeg(image, quality=100), "boxes.json": {"boxes": boxes, "labels": [0, 1][: len(boxes)]}}
            )
    return place


BOTH = [T.RandomZoomOut(), T.RandomIoUCrop()]
RECIPES = {
    "part": [T.RandomIoUCrop(), T.Resize((80, 80)), T.RandomHorizontalFlip()],
    "zoom": [T.RandomZoomOut(p=1.0), T.Resize((120, 90)), T.RandomHorizontalFlip()],
    "both": [*BOTH, T.Resize((96, 96))],
    "both, flipped": [*BOTH, T.Resize((96, 96)), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "pad": [T.Resize((60, 60)), T.Pad((7, 3, 11, 5), fill=0.0), T.RandomHorizontalFlip()],
}


class TestWindowsInLoader:
    @pytest.mark.parametrize("name", RECIPES)
    def test_boxes_lie_on_what_was_painted(self, painted: Path, name: str) -> None:
        dataset = FastDataset(painted, fields=FIELDS)
        seen = 0
        for epoch in range(3):
            loader = FastLoader(dataset, 10, targets=BOXES, transform=RECIPES[name], num_workers=2, seed=epoch)
            for batch in loader:
                for image, found in zip(batch["image"].numpy(), batch["boxes.json"], strict=True):
                    assert len(found["boxes"]) == len(found["labels"])
                    for (x0, y0, x1, y1), label in zip(found["boxes"], found["labels"], strict=True):
                        inner = image[label, round(y0 + 2) : round(y1 - 2), round(x0 + 2) : round(x1 - 2)]
                        assert inner.size == 0 or np.median(inner) > 200
                        seen += 1
                        if x0 > 4 and y1 - y0 > 6:  # dark beside it, but for the other rectangle's channel
                            beside = image[label, round(y0 + 2) : round(y1 - 2), round(x0 - 3)]
                            assert np.median(beside) < 60
        assert seen > 60

    def test_a_box_whose_middle_is_cut_off_is_removed(self, painted: Path) -> None:
        dataset = FastDataset(painted, fields=[*FIELDS, "crop"])
        transform, gone = [T.RandomIoUCrop(sampler_options=(0.3, 0.5))], 0
        plain = {
            int(batch["index"][0]): batch["boxes.json"][0]
            for batch in FastLoader(dataset, 1, targets=BOXES, transform=None)
        }
        for batch in FastLoader(dataset, 8, targets=BOXES, transform=transform, ragged="list"):
            for row, index in enumerate(batch["index"].tolist()):
                crop, kept = batch["crop"][row], batch["boxes.json"][row]["labels"]
                for box, label in zip(plain[index]["boxes"], plain[index]["labels"], strict=True):
                    middle = crop.point((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
                    assert (label in kept) == crop.holds(middle)
                    gone += label not in kept
        assert gone > 3

    def test_ranks_threads_containers_and_a_resume_change_nothing(self, painted: Path, tmp_path: Path) -> None:
        dataset, transform = FastDataset(painted, fields=FIELDS), T.detection_train("ssd", 64)
        common: dict[str, Any] = {"targets": BOXES, "transform": transform, "shuffle": True, "seed": 9}

        def listed(loaders: list[Any]) -> dict[int, tuple[Any, Any]]:
            return {
                index: (image.numpy().tobytes(), boxes)
                for loader in loaders
                for batch in loader
                for index, image, boxes in zip(
                    batch["index"].tolist(), batch["image"], batch["boxes.json"], strict=True
                )
            }

        whole = listed([FastLoader(dataset, 8, num_workers=1, **common)])
        ranks = [FastLoader(dataset, 4, num_workers=3, rank=rank, world_size=2, **common) for rank in (0, 1)]
        assert listed(ranks) == whole
        assert len(whole) == 40
        for name in ("set.tar", "set.tfrecord"):
            pack(painted, tmp_path / name, format="keep", check="end", workers=1)
            assert listed([FastLoader(FastDataset(tmp_path / name, fields=FIELDS), 8, **common)]) == whole
        first = FastLoader(dataset, 8, **common)
        batches = iter(first)
        before = [next(batches) for _ in range(2)]
        again = FastLoader(dataset, 8, **common)
        again.load_state_dict(first.state_dict())
        assert len(before) + len(list(again)) == 5
        again.load_state_dict(first.state_dict())
        rest = listed([again])
        assert len(rest) == 24
        assert all(whole[index] == found for index, found in rest.items())

    def test_targets_must_be_boxes(self, painted: Path) -> None:
        with pytest.raises(OptionError, match=r'RandomIoUCrop.* goes by boxes: .*targets=\{"boxes.json": "boxes"\}'):
            FastLoader(FastDataset(painted), 4, transform=[T.RandomIoUCrop(), T.Resize((32, 32))])

    def test_boxes_that_cannot_be_read_are_a_failure_of_their_sample(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "bad.lmdb") as writer:
            for number in range(4):
                boxes: Any = [[1, 2, 3]] if number == 2 else [[1, 2, 30, 30]]
                writer.write({"jpg": jpeg(np.zeros((40, 40, 3), np.uint8)), "boxes.json": boxes})
        loader = FastLoader(
            FastDataset(tmp_path / "bad.lmdb", fields=FIELDS),
            4,
            targets=BOXES,
            transform=[T.RandomIoUCrop(), T.Resize((32, 32))],
            on_error="drop",
        )
        batch = next(iter(loader))
        assert batch["index"].tolist() == [0, 1, 3]


class TestPad:
    def test_it_is_torchvisions_padding(self, tmp_path: Path) -> None:
        image = np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8)
        (tmp_path / "set").mkdir()
        Image.fromarray(image).save(tmp_path / "set" / "one.png")
        for mode, name in (("constant", "constant"), ("edge", "replicate"), ("reflect", "reflect")):
            transform = [T.Resize((40, 50)), T.Pad((3, 5, 7, 2), padding_mode=mode)]
            made, _ = next(iter(FastLoader(FastDataset(tmp_path / "set"), 1, transform=transform)))
            plain = torch.from_numpy(image).permute(2, 0, 1)[None].float()
            wanted = torch.nn.functional.pad(plain, (3, 7, 5, 2), mode=name).to(torch.uint8)
            assert torch.equal(made, wanted), mode

    def test_images_must_be_of_one_size(self) -> None:
        for transforms in ([T.Pad(4)], [T.Resize(32), T.Pad(4)]):
            with pytest.raises(OptionError, match=r"Pad.* must follow Resize"):
                T.compile(transforms)
        assert T.compile([T.Resize((30, 20)), T.Pad((1, 2, 3, 4))]).size == (36, 24)


def test_a_padded_crop_of_smaller_images_in_the_device_cache(tmp_path: Path) -> None:
    """cache="device" has the same pixels within one level as without a cache."""
    rng = np.random.default_rng(2)
    with open_writer(tmp_path / "small.lmdb") as writer:
        for number in range(12):
            small = rng.integers(0, 256, (3, 4, 3), np.uint8).repeat(8 + number % 5, 0).repeat(8, 1)
            writer.write({"jpg": jpeg(small, quality=95), "cls": number})
    dataset = FastDataset(tmp_path / "small.lmdb")
    for crop in (
        T.RandomCrop(36, padding=4, pad_if_needed=True, padding_mode="reflect"),
        T.CenterCrop(40, pad_if_needed=True, fill=0.5),
    ):
        common: dict[str, Any] = {"transform": [crop], "seed": 4, "device": "cpu"}
        kept = [images for images, _ in FastLoader(dataset, 4, cache="device", **common)]
        anew = [images for images, _ in FastLoader(dataset, 4, **common)]
        for one, two in zip(kept, anew, strict=True):
            assert (one.int() - two.int()).abs().max() <= 1


def test_one_padding_view_does_not_pad_the_others(tmp_path: Path) -> None:
    with open_writer(tmp_path / "small.lmdb") as writer:
        writer.write({"jpg": jpeg(np.full((20, 20, 3), 90, np.uint8)), "cls": 0})
    views = T.Views(padded=[T.RandomCrop(24, pad_if_needed=True)], plain=[T.CenterCrop(24)])
    with pytest.raises(Exception, match=r"small\.lmdb"):
        next(iter(FastLoader(FastDataset(tmp_path / "small.lmdb"), 1, transform=views)))
