"""Batches of one channel: gray values of 8 bits, and images of 16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import exif, jpeg, save
from loader_sets import write_numbered
from PIL import Image

from iofast import FastDataset, FastLoader, LoaderOptions, open_writer
from iofast import transforms as T
from iofast.errors import DecodeError, OptionError
from iofast.loader import checks
from iofast.loader.singly import DeepSamples

N = 10
CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


def pictures(place: Path, *, gray: bool = False) -> FastDataset:
    rng, images = np.random.default_rng(3), []
    for _ in range(N):
        image = rng.integers(0, 256, (6, 7, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        images.append(save(Image.fromarray(image[..., 0]), "JPEG", quality=95) if gray else jpeg(image, quality=95))
    return FastDataset(write_numbered(place / "set.lmdb", images))


def batch(dataset: FastDataset, **options: Any) -> Any:
    return next(iter(FastLoader(dataset, options.pop("batch_size", N), seed=2, **options)))[0]


class TestGray:
    def test_gray_pictures_keep_their_levels(self, tmp_path: Path) -> None:
        dataset = pictures(tmp_path, gray=True)
        made = batch(dataset, image_mode="L")
        assert (made.shape, made.dtype, made.is_contiguous()) == ((N, 1, 48, 56), torch.uint8, True)
        assert np.array_equal(made[:, 0], np.stack([image.convert("L") for image, _ in dataset]))

    @pytest.mark.parametrize("transform", [None, CROP, [*CROP, T.ColorJitter(0.4, 0.4, 0.4), T.RandomRotation(30)]])
    def test_colours_become_what_pillow_makes_of_them(self, tmp_path: Path, transform: Any) -> None:
        dataset = pictures(tmp_path)
        colours, made = (batch(dataset, transform=transform, image_mode=mode) for mode in ("RGB", "L"))
        wanted = [Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L") for image in colours]
        assert np.array_equal(made[:, 0], np.stack([np.asarray(image) for image in wanted]))

    @pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
    def test_floats_are_normalised_levels(self, tmp_path: Path, dtype: torch.dtype, close: float) -> None:
        dataset = pictures(tmp_path)
        plain = batch(dataset, transform=CROP, image_mode="L").float() / 255
        for more, wanted in (([], plain), ([T.Normalize([0.4], [0.2])], (plain - 0.4) / 0.2)):
            made = batch(dataset, transform=[*CROP, *more], image_mode="L", dtype=dtype)
            assert made.shape == (N, 1, 24, 24)
            assert torch.allclose(made.float(), wanted, atol=close)

    def test_views_lists_caches_and_mixing(self, tmp_path: Path) -> None:
        dataset = pictures(tmp_path)
        views = batch(dataset, transform=T.Views(a=(2, CROP), b=[T.CenterCrop(16)]), image_mode="L")
        assert [each.shape for each in views["a"]] == [(N, 1, 24, 24)] * 2
        assert views["b"].shape == (N, 1, 16, 16)
        listed = batch(dataset, transform=[T.RandomResize(20, 40)], image_mode="L", ragged="list")
        assert {each.shape[0] for each in listed} == {1}
        assert len({each.shape for each in listed}) > 1
        padded = batch(dataset, transform=[T.RandomResize(20, 40)], image_mode="L", ragged="pad")
        assert padded.shape[:2] == (N, 1)
        kept, anew = (batch(dataset, transform=CROP, image_mode="L", cache=cache) for cache in ("device", None))
        assert kept.shape == anew.shape
        assert (kept.int() - anew.int()).abs().max() <= 1
        mixed = batch(dataset, transform=[*CROP, T.MixUp(num_classes=N)], image_mode="L", dtype=torch.float32)
        assert mixed.shape == (N, 1, 24, 24)

    @pytest.mark.parametrize("op", [T.Normalize.imagenet(), T.RandomErasing(value=(0.1, 0.2, 0.3))], ids=repr)
    def test_numbers_of_three_channels_are_refused(self, tmp_path: Path, op: Any) -> None:
        with pytest.raises(OptionError, match="image_mode='L' has one channel: give one number"):
            FastLoader(pictures(tmp_path), 2, transform=[*CROP, op], image_mode="L", dtype=torch.float32)


def deep(place: Path) -> list[Any]:
    """A folder of PNGs of 16 bits, and one of 8."""
    (place / "scans").mkdir(parents=True)
    rng = np.random.default_rng(5)
    made = [rng.integers(0, 65536, (5, 6)).astype(np.uint16).repeat(8, 0).repeat(8, 1) for _ in range(N)]
    for number, levels in enumerate(made[:-1]):
        Image.fromarray(levels).save(place / "scans" / f"{number}.png")
    Image.fromarray((made[-1] >> 8).astype(np.uint8)).save(place / "scans" / f"{N - 1}.png")
    made[-1] = (made[-1] >> 8) * 257
    return made


class TestDeep:
    def test_all_bits_arrive(self, tmp_path: Path) -> None:
        wanted = np.stack(deep(tmp_path))
        made = batch(FastDataset(tmp_path / "scans"), image_mode="I;16", num_workers=2)
        assert made.dtype == torch.int32
        assert made.shape == (N, 1, 40, 48)
        assert np.array_equal(made[:, 0].numpy(), wanted)
        floats = batch(FastDataset(tmp_path / "scans"), image_mode="I;16", dtype=torch.float32)
        assert torch.allclose(floats, made / 65535, atol=1e-6)
        transform = [T.Normalize([0.5], [0.25])]
        scaled = batch(FastDataset(tmp_path / "scans"), image_mode="I;16", dtype=torch.float32, transform=transform)
        assert torch.allclose(scaled, (made / 65535 - 0.5) / 0.25, atol=1e-5)

    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "random"])
    def test_crops_are_pillows_of_floats(self, tmp_path: Path, interpolation: str) -> None:
        stored = deep(tmp_path)
        transform = [T.RandomResizedCrop(20, interpolation=interpolation), T.RandomHorizontalFlip()]
        made = batch(FastDataset(tmp_path / "scans"), image_mode="I;16", transform=transform)[:, 0].numpy()
        from iofast.choices import Draw

        draw = Draw(2, 0, np.arange(N))
        boxes, flips = T.compile(transform).plan(draw, np.full(N, 48), np.full(N, 40))
        names = {0: interpolation, 4: "bicubic", 3: "bilinear"}
        for row in range(N):
            filter = names.get(int(flips[row]) >> 1, "bilinear")
            image = Image.fromarray(stored[row].astype(np.float32)).crop(boxes[row, :4].tolist())
            wanted = np.asarray(image.resize((20, 20), Image.Resampling[filter.upper()]))
            wanted = wanted[:, ::-1] if flips[row] & 1 else wanted
            assert np.abs(made[row] - wanted.clip(0, 65535)).max() <= 1

    def test_packed_and_turned(self, tmp_path: Path) -> None:
        """Kept as they are by pack, upright by their EXIF orientation."""
        levels = np.arange(30 * 20, dtype=np.uint16).reshape(30, 20) * 100
        with open_writer(tmp_path / "set.lmdb") as writer:
            writer.write({"png": save(Image.fromarray(levels), "PNG", exif=exif(6)), "cls": 0})
        made = batch(FastDataset(tmp_path / "set.lmdb"), image_mode="I;16", batch_size=1)
        assert np.array_equal(made[0, 0].numpy(), np.rot90(levels, -1))

    def test_raw_pixels(self, tmp_path: Path) -> None:
        pixels = np.random.default_rng(6).integers(0, 256, (40, 48, 3), np.uint8)
        with open_writer(tmp_path / "raw.lmdb") as writer:
            writer.write({"rgb": pixels.tobytes(), "json": {"width": 48, "height": 40}})
        dataset = FastDataset(tmp_path / "raw.lmdb")
        for transform, part in ((None, pixels), ([T.CenterCrop(16)], pixels[12:28, 16:32])):
            made = batch(dataset, image_mode="I;16", batch_size=1, transform=transform)
            wanted = np.asarray(Image.fromarray(part).convert("L")).astype(int) * 257
            assert np.array_equal(made[0, 0].numpy(), wanted)

    def test_damage_is_a_failure_of_its_sample(self, tmp_path: Path) -> None:
        deep(tmp_path)
        broken = tmp_path / "scans" / "3.png"
        broken.write_bytes(broken.read_bytes()[:-60])
        dataset = FastDataset(tmp_path / "scans")
        with pytest.raises(DecodeError, match=r"3\.png"):
            batch(dataset, image_mode="I;16")
        made = batch(dataset, image_mode="I;16", on_error="replace")
        assert len(made) == N
        assert made.any(dim=(1, 2, 3)).all()
        assert len(batch(dataset, image_mode="I;16", on_error="drop")) == N - 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"transform": [T.Resize((8, 8)), T.ColorJitter(0.4)]}, "ColorJitter"),
            ({"transform": [T.RandomCrop(8, padding=2)]}, "RandomCrop"),
            ({"transform": [T.Normalize.imagenet()], "dtype": torch.float32}, "Normalize of several"),
            ({"transform": T.Views(a=[T.CenterCrop(8)])}, "Views"),
            ({"ragged": "pad"}, "ragged"),
            ({"cache": "device"}, "cache"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_there_is_not(self, tmp_path: Path, options: dict[str, Any], message: str) -> None:
        deep(tmp_path)
        with pytest.raises(OptionError, match=f"image_mode='I;16' does not go with {message}"):
            FastLoader(FastDataset(tmp_path / "scans"), 2, image_mode="I;16", **options)

    def test_no_device_decodes_it(self) -> None:
        with pytest.raises(OptionError, match="image_mode='I;16' does not go with decode"):
            checks._check_deep(
                DeepSamples(1, "uint16", True, ()), T.compile([]), LoaderOptions(image_mode="I;16", decode="gpu")
            )
