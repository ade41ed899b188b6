"""Loaders that decode JPEGs on a device: the same batches as on the CPU, and every failure there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_decoding import Bench, Double, here
from kernel_images import jpeg, photo, save
from loader_sets import photographs, with_broken, write_folder, write_lmdb, write_numbered
from PIL import Image

from iofast import FastDataset, FastLoader, open_writer
from iofast import transforms as T
from iofast.errors import DecodeError, ErrorBudgetError, OptionError
from iofast.gpu.decode import choice as decoding_module
from iofast.kernel import TranscodeRecipe, backend, decode, transcode

IMAGES = photographs(40)
AUGMENT: dict[str, Any] = {"transform": [T.RandomResizedCrop(24), T.RandomHorizontalFlip()], "shuffle": True}
EVALUATE: dict[str, Any] = {"transform": [T.Resize(32), T.CenterCrop((20, 24))]}
FLOATS: dict[str, Any] = {
    "transform": [
        T.RandomResizedCrop(24),
        T.ColorJitter(0.4),
        T.Normalize.imagenet(),
        T.MixUp(alpha=0.3, num_classes=40),
    ],
    "dtype": torch.float32,
    "drop_last": True,
    "memory_format": torch.contiguous_format,
}


def packed(count: int = 24) -> list[bytes]:
    """Return photographs with restart markers, as after packing."""
    recipe = TranscodeRecipe(restart="auto", quality=90)
    return [transcode(jpeg(photo(150 + 3 * i, 120 + 5 * i, i)), recipe).data for i in range(count)]


def damaged_inside(data: bytes) -> bytes:
    """Return a JPEG with intact markers and damaged codes, which a strict decoder refuses; for the twin a short one."""
    if backend == "python":
        return data[:-60]
    start, rng = data.index(b"\xff\xda") + 14, np.random.default_rng(1)
    for _ in range(100):
        noise = rng.integers(0, 255, len(data) - start - 2, np.uint8).tobytes()
        made = data[:start] + noise + data[-2:]
        try:
            decode(made)
        except DecodeError as error:
            if "corrupt" in str(error):
                return made
    raise AssertionError("every noise can be decoded")


DAMAGED = damaged_inside(IMAGES[5])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding")
    write_numbered(folder / "set.lmdb", IMAGES)
    write_lmdb(folder / "packed.lmdb", packed())
    with_broken(folder / "broken.lmdb", IMAGES, [5, 6, 30])
    write_folder(folder / "folder", IMAGES)
    write_folder(folder / "images", [data if i != 9 else DAMAGED for i, data in enumerate(IMAGES)])
    return folder


def off(images: torch.Tensor, expected: torch.Tensor, levels: float = 2) -> bool:
    """Return whether images differ by more than one level of the kernel and one of the device's geometry."""
    scale = 1 if images.dtype == torch.uint8 else 1 / 255 / 0.22 * 1.5  # normalised, and contrast up to 1.4
    return bool((images.double() - expected.double()).abs().max() > levels * scale)


def same(own: FastLoader, other: FastLoader) -> int:
    """Compare an epoch, and return the number of images."""
    count = 0
    for (images, labels), (expected, theirs) in zip(own, other, strict=True):
        assert torch.equal(labels, theirs)
        assert images.shape == expected.shape
        assert images.stride() == expected.stride()
        assert not off(images, expected)
        assert torch.equal(own.last_valid, other.last_valid)  # type: ignore[arg-type]
        count += len(images)
    return count


class TestTheSameDecodedBatches:
    @pytest.mark.parametrize("options", [AUGMENT, EVALUATE, FLOATS], ids=["augment", "evaluate", "floats"])
    @pytest.mark.parametrize("name", ["set.lmdb", "packed.lmdb", "folder"])
    def test_pixels_are_those_of_the_cpu(self, bench: Bench, place: Path, options: dict[str, Any], name: str) -> None:
        own, other = bench.there(place / name, **options), here(place / name, **options)
        assert same(own, other) + same(own, other) >= 48
        assert own.stats.ways["device"] > 0
        assert own.stats.images == sum(own.stats.ways.values()) == other.stats.images

    def test_orientations(self, bench: Bench, tmp_path: Path) -> None:
        """In each of the eight, a crop needs another part of the JPEG."""
        data = packed(1)[0]
        with open_writer(tmp_path / "turned.lmdb") as writer:
            for turn in range(1, 9):
                block = Image.Exif()
                block[0x0112] = turn
                body = b"Exif\0\0" + block.tobytes().removeprefix(b"Exif\0\0")
                exif = b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body
                writer.write({"jpg": data[:2] + exif + data[2:], "cls": turn})
        crop: dict[str, Any] = {"transform": [T.RandomResizedCrop(40, scale=(0.05, 0.2))]}
        same(bench.there(tmp_path / "turned.lmdb", **crop), here(tmp_path / "turned.lmdb", **crop))
        assert all(jpeg[3:] == (0, 0, jpeg.width, jpeg.height) for jpeg in bench.backend.seen)
        assert sum(jpeg.width * jpeg.height for jpeg in bench.backend.seen) < 0.6 * 8 * 150 * 120

    def test_other_images_are_decoded_on_the_cpu(self, bench: Bench, tmp_path: Path) -> None:
        images = [photo(40 + i, 50) for i in range(6)]
        with open_writer(tmp_path / "mixed.lmdb") as writer:
            for i, pixels in enumerate(images):
                kinds = (jpeg(pixels), jpeg(pixels, progressive=True), save(Image.fromarray(pixels), "PNG"))
                writer.write({("jpg", "jpg", "png")[i % 3]: kinds[i % 3], "cls": i})
        own = bench.there(tmp_path / "mixed.lmdb", 6, **EVALUATE)
        same(own, here(tmp_path / "mixed.lmdb", 6, **EVALUATE))
        assert own.stats.ways["device"] == 2

    def test_large_images_are_decoded_in_groups(
        self, bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("iofast.gpu.decode.parts_canvas.MOST", 60_000)
        own = bench.there(place / "set.lmdb", 20, **AUGMENT)
        assert same(own, here(place / "set.lmdb", 20, **AUGMENT)) == 40
        assert 6 < bench.backend.calls < 30

    def test_dictionaries_and_peek(self, bench: Bench, place: Path) -> None:
        fields = FastDataset(place / "set.lmdb", fields=["image", "key", "index"])
        own, other = bench.there(fields, **AUGMENT), here(fields, **AUGMENT)
        batch, expected = own.peek(), other.peek()
        assert isinstance(batch, dict)
        assert batch["key"] == expected["key"]
        assert not off(batch["image"], expected["image"])
        assert torch.equal(batch["image"], next(iter(own))["image"])

    def test_only_a_part_of_a_photograph_is_copied(self, bench: Bench, tmp_path: Path) -> None:
        path = write_lmdb(tmp_path / "large.lmdb", [packed(1)[0]] * 16)
        crop = [T.RandomResizedCrop(24, scale=(0.08, 0.25))]
        list(bench.there(path, transform=crop))
        sent = sum(len(jpeg.data) for jpeg in bench.backend.seen)
        assert sent < 0.7 * 16 * len(packed(1)[0])


class TestDecodingFailures:
    @pytest.mark.parametrize("fault", [lambda n, image: None, lambda n, image: image[1:]], ids=["none", "another size"])
    def test_the_cpu_decodes_what_the_device_cannot(self, bench: Bench, place: Path, fault: Any) -> None:
        bench.backend = Double(lambda n, image: fault(n, image) if n % 3 == 0 else image)
        own = bench.there(place / "set.lmdb", **AUGMENT)
        assert same(own, here(place / "set.lmdb", **AUGMENT)) == 40
        assert 0 < own.stats.ways["device"] < 30
        assert own.stats.errors == 0

    def test_a_library_that_raises(self, bench: Bench, place: Path) -> None:
        def broken(number: int, image: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("the driver is gone")

        bench.backend = Double(broken)
        own = bench.there(place / "set.lmdb", **AUGMENT)
        with pytest.warns(RuntimeWarning, match="the CPU does: the driver is gone"):
            assert same(own, here(place / "set.lmdb", **AUGMENT)) == 40
        assert own.stats.ways["device"] == 0

    @pytest.mark.parametrize("name", ["broken.lmdb", "images"])
    @pytest.mark.parametrize("action", ["replace", "drop"])
    def test_broken_ones_are_replaced_or_dropped(self, bench: Bench, place: Path, name: str, action: Any) -> None:
        bench.backend._one = refuse(bench.backend, DAMAGED[-60:-2])  # type: ignore[method-assign]
        options = AUGMENT | {"on_error": action}
        own, other = bench.there(place / name, **options), here(place / name, **options)
        for _ in range(2):
            same(own, other)
        assert [str(failure) for failure in own.failures] == [str(failure) for failure in other.failures]
        assert own.stats.errors == other.stats.errors > 0

    def test_broken_ones_raise_at_their_batch(self, bench: Bench, place: Path) -> None:
        bench.backend._one = refuse(bench.backend, DAMAGED[-60:-2])  # type: ignore[method-assign]
        batches = iter(bench.there(place / "images", 4, **EVALUATE))
        next(batches)
        next(batches)
        with pytest.raises(DecodeError, match=r"00009\.jpg.*(corrupt|truncated)"):
            next(batches)

    def test_the_budget(self, bench: Bench, place: Path) -> None:
        own = bench.there(place / "broken.lmdb", on_error="drop", max_errors=2, **AUGMENT)
        with pytest.raises(ErrorBudgetError, match="3 samples of epoch 0"):
            list(own)

    def test_an_image_whose_field_is_broken_is_replaced_as_a_whole(self, bench: Bench, tmp_path: Path) -> None:
        with open_writer(tmp_path / "fields.lmdb") as writer:
            for i in range(8):
                writer.write({"jpg": IMAGES[3 * i + 5], "cls": i, "boxes.json": b"{" if i == 4 else b"[]"})
        fields = FastDataset(tmp_path / "fields.lmdb", fields=["image", "label", "boxes.json", "crop"])
        options: dict[str, Any] = {"on_error": "replace", **AUGMENT}
        own, other = next(iter(bench.there(fields, **options))), next(iter(here(fields, **options)))
        assert torch.equal(own["label"], other["label"])
        assert own["crop"] == other["crop"]
        assert not off(own["image"], other["image"])

    def test_leaving_early(self, bench: Bench, place: Path) -> None:
        batches = iter(bench.there(place / "set.lmdb", 2, **AUGMENT))
        next(batches)
        del batches  # the fixture expects no thread


def refuse(backend: Double, wrong: bytes) -> Any:
    """Return a decoder that refuses a JPEG which Pillow accepts."""
    plain = type(backend)._one

    def one(jpeg: Any) -> Any:
        return None if wrong[:40] in jpeg.data.numpy().tobytes() else plain(backend, jpeg)

    return one


def test_a_library_that_does_not_work(bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(device: Any, threads: int) -> Any:
        raise OptionError("JPEGs cannot be decoded on the device: nvImageCodec: no nvjpeg")

    monkeypatch.setattr(decoding_module, "open_decoder", fails)
    with pytest.raises(OptionError, match="no nvjpeg"):
        next(iter(bench.there(place / "packed.lmdb", **AUGMENT)))


class TestWithoutAGpu:
    def test_the_error_is_one_line(self, place: Path) -> None:
        with pytest.raises(
            OptionError, match=r"^decode=.* is not available: it needs an NVIDIA GPU .* found device='cpu'$"
        ):
            here(place / "packed.lmdb", decode="gpu", **AUGMENT)

    @pytest.mark.parametrize("how", ["tpu", "split", "auto", None, 0.4, True])
    def test_invalid_values(self, place: Path, how: Any) -> None:
        with pytest.raises(OptionError, match="decode must be 'cpu' or 'gpu', found"):
            here(place / "packed.lmdb", decode=how)


class TestWhatADeviceCannotDo:
    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"transform": [T.Resize(20)]}, "makes all images one size"),
            ({"transform": [T.CenterCrop(8)], "cache": "device"}, "decoded once, by the CPU"),
            ({"ragged": "list"}, "makes all images one size"),
            ({"transform": [T.RandomResizedCrop(8, interpolation="bicubic")]}, "bilinearly, .*'bicubic'"),
            ({"transform": [T.CenterCrop(8)], "map_sample": lambda sample, rng: sample}, "map_sample and collate"),
            ({"transform": [T.CenterCrop(8)], "collate": {"image": torch.stack}}, "map_sample and collate"),
        ],
    )
    def test_is_refused(self, bench: Bench, place: Path, options: dict[str, Any], reason: str) -> None:
        with pytest.raises(OptionError, match=f"^decode='gpu' is not available: .*{reason}"):
            bench.there(place / "packed.lmdb", **options)

    def test_a_dataset_without_images(self, bench: Bench, place: Path) -> None:
        fields = FastDataset(place / "packed.lmdb", fields=["label"])
        with pytest.raises(OptionError, match="have no image"):
            bench.there(fields)
