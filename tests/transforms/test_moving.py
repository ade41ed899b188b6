"""Operations that move pixels: their random numbers, and marks on an image that must move along."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pixel_work import is_uniform
from transform_draws import MANY, N, work

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.work import Step


class TestDraws:
    def test_flips_behind_colours_are_steps(self) -> None:
        ops = T.Grayscale(), T.RandomHorizontalFlip(0.6), T.RandomVerticalFlip(0.3)
        pipeline, made = T.compile(ops), work(*ops)
        assert (pipeline.flip, pipeline.moves) == (None, ops[1])
        assert (made.steps == Step.FLIP).mean(axis=0) == pytest.approx([0, 0.6, 0.3], abs=0.03)
        assert made.numbers[0, 1:, :2].tolist() == [[1, 0], [0, 1]]

    def test_angles_are_uniform_and_the_middle_stays(self) -> None:
        own = work(T.RandomRotation((-10, 40))).numbers[:, 0].astype(np.float64)
        angles = np.rad2deg(np.arctan2(own[:, 3], own[:, 0]))
        assert is_uniform(angles, -10, 40)
        x, y = own[:, 0] * 32 + own[:, 1] * 24 + own[:, 2], own[:, 3] * 32 + own[:, 4] * 24 + own[:, 5]
        np.testing.assert_allclose(np.stack((x, y)), np.tile([[32], [24]], N), atol=1e-4)

    def test_an_affine_map_inverts_scale_then_shear_then_rotation_then_shift(self) -> None:
        op = T.RandomAffine(30, translate=(0.25, 0.5), scale=(0.5, 2), shear=(-20, 20, -10, 10), center=(10, 20))
        own = work(op).numbers[:, 0].astype(np.float64)
        u = MANY.uniform("affine", 6)
        for row in range(50):
            angle = np.deg2rad(-30 + 60 * u[row, 0])
            shift = np.rint((2 * u[row, 1:3] - 1) * [0.25 * 64, 0.5 * 48])
            scale, x, y = 0.5 + 1.5 * u[row, 3], *np.deg2rad([-20 + 40 * u[row, 4], -10 + 20 * u[row, 5]])
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            shear = np.array([[1, 0], [-np.tan(y), 1]]) @ np.array([[1, -np.tan(x)], [0, 1]])
            forward = turn @ shear @ np.array([[1, 0], [0, 1]]) * scale
            for point in ([0.0, 0.0], [64.0, 0.0], [3.0, 40.0]):
                there = forward @ (np.array(point) - (10, 20)) + (10, 20) + shift
                back = own[row, [0, 1, 3, 4]].reshape(2, 2) @ there + own[row, [2, 5]]
                np.testing.assert_allclose(back, point, atol=2e-3)

    def test_a_perspective_maps_its_corners_to_the_images(self) -> None:
        own = work(T.RandomPerspective(0.5, p=1)).numbers[:, 0].astype(np.float64)
        u, room = MANY.uniform("perspective", 9), np.array([17, 13])
        far = np.array([64, 48]) - room
        for row in range(50):
            inward = np.floor(u[row, 1:].reshape(4, 2) * room)
            corners = inward + far * [(0, 0), (1, 0), (1, 1), (0, 1)]
            a, b, c, d, e, f, g, h = own[row, :8]
            for (left, top), start in zip(corners, [(0, 0), (63, 0), (63, 47), (0, 47)], strict=True):
                below = g * left + h * top + 1
                found = (a * left + b * top + c) / below, (d * left + e * top + f) / below
                np.testing.assert_allclose(found, start, atol=2e-2)


def saved(folder: Path, count: int, *size: int) -> tuple[Path, list[NDArray[np.uint8]]]:
    """A folder of noise."""
    images = [np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8) for number in range(count)]
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:03}.png")
    return folder, images


class TestPadding:
    @pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
    @pytest.mark.parametrize("flips", [[], [T.RandomHorizontalFlip()]])
    def test_is_numpys(self, tmp_path: Path, mode: Any, flips: list[Any]) -> None:
        """Each crop is a window of its padded image, mirrored or not, and every place occurs."""
        (folder, images), size = saved(tmp_path, 6, 12, 15), (12, 14)
        crop = T.RandomCrop(size, padding=(3, 4, 5, 2), padding_mode=mode, fill=(1.0, 0.2, 0.0))
        loader = FastLoader(FastDataset(folder, fields=["image", "index"]), 6, transform=[crop, *flips])
        seen = set()
        for epoch in range(12):
            loader.set_epoch(epoch)
            (batch,) = loader
            for image, index in zip(batch["image"], batch["index"].tolist(), strict=True):
                wide = np.pad(images[index], ((4, 2), (3, 5), (0, 0)), mode=mode)
                if mode == "constant":
                    wide[:] = 255, 51, 0
                    wide[4:-2, 3:-5] = images[index]
                views = np.lib.stride_tricks.sliding_window_view(wide, (*size, 3))[:, :, 0]
                own = image.permute(1, 2, 0).numpy()
                found = [np.argwhere((views == each).all(axis=(2, 3, 4))) for each in (own, own[:, ::-1])]
                assert sum(map(len, found)) >= 1
                seen |= {tuple(place) for each in found for place in each.tolist()}
        assert {y for y, _ in seen} == set(range(7))
        assert {x for _, x in seen} == set(range(10))

    @pytest.mark.parametrize("crop", [T.RandomCrop(20, pad_if_needed=True), T.CenterCrop(20, pad_if_needed=True)])
    def test_small_images_are_padded(self, tmp_path: Path, crop: Any) -> None:
        folder, images = saved(tmp_path, 4, 9, 30)
        loader = FastLoader(FastDataset(folder, fields=["image", "crop"]), 4, transform=[crop])
        (batch,) = loader
        for image, box, stored in zip(batch["image"], batch["crop"], images, strict=True):
            left, top = box.points([0, 0]).astype(int).tolist()
            wanted = np.zeros((20, 20, 3), np.uint8)
            wanted[top : top + 9] = stored[:, -left : 20 - left]
            np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), wanted)


def test_alternating_flips_show_both_sides_in_two_epochs(tmp_path: Path) -> None:
    folder, images = saved(tmp_path, 40, 6, 7)
    dataset = FastDataset(folder, fields=["image", "index"])
    for seed, shuffle in ((0, False), (1, True)):
        flip = T.RandomHorizontalFlip(alternating=True)
        loader = FastLoader(dataset, 40, seed=seed, shuffle=shuffle, transform=[flip])
        shown = np.zeros((3, 40), np.bool_)
        for epoch in range(3):
            loader.set_epoch(epoch)
            (batch,) = loader
            for image, index in zip(batch["image"], batch["index"].tolist(), strict=True):
                shown[epoch, index] = (image.permute(1, 2, 0).numpy() != images[index]).any()
        assert (shown[0] == ~shown[1]).all()
        assert (shown[0] == shown[2]).all()
        assert 8 < shown[0].sum() < 32


def test_a_crop_behind_a_resize_is_a_part_of_the_stored_image() -> None:
    pipeline = T.compile([T.Resize(50), T.RandomResizedCrop(20)])
    plain = T.compile([T.RandomResizedCrop(20)])
    boxes, _ = pipeline.plan(MANY, np.full(N, 200), np.full(N, 100))
    small, _ = plain.plan(MANY, np.full(N, 100), np.full(N, 50))
    np.testing.assert_array_equal(boxes[:, :4], 2 * small[:, :4])
    assert (boxes[:, 4:] == small[:, 4:]).all()
    odd, _ = pipeline.plan(MANY, np.full(N, 3), np.full(N, 7))
    assert ((odd[:, 0] < odd[:, 2]) & (odd[:, 2] <= 3) & (odd[:, 1] < odd[:, 3]) & (odd[:, 3] <= 7)).all()
