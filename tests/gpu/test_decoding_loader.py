"""Loaders that decode JPEGs on a device: the same batches as on the CPU, and every failure there."""

from __future__ import annotations

import logging
import pickle
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
from iofast.errors import DecodeError, ErrorBudgetError, OptionError, StateError
from iofast.gpu.decode import choice as decoding_module
from iofast.kernel import TranscodeRecipe, backend, decode, transcode
from iofast.loader import Split

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
    @pytest.mark.parametrize("how", ["gpu", Split(0.3), Split(1.0)], ids=["gpu", "split", "all on the CPU"])
    def test_pixels_are_those_of_the_cpu(
        self, bench: Bench, place: Path, options: dict[str, Any], name: str, how: Any
    ) -> None:
        own, other = bench.there(place / name, decode=how, **options), here(place / name, **options)
        assert same(own, other) + same(own, other) >= 48
        assert (own.stats.ways.get("device", 0) > 0) == (how != Split(1.0))
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
        monkeypatch.setattr("iofast.gpu.decode.divided.MOST", 60_000)
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


class TestSplitDecoding:
    def test_positions_of_a_batch_and_not_of_a_rank(self, bench: Bench, place: Path) -> None:
        """The halves of two ranks equal one rank's batch bit by bit."""
        whole = list(bench.there(place / "packed.lmdb", 8, decode=Split(0.4), drop_last=True, **AUGMENT))
        half: dict[str, Any] = {"decode": Split(0.4), "drop_last": True, "world_size": 2, **AUGMENT}
        ranks = [list(bench.there(place / "packed.lmdb", 4, rank=rank, **half)) for rank in (0, 1)]
        for (images, _), *parts in zip(whole, *ranks, strict=True):
            assert torch.equal(images, torch.cat([part[0] for part in parts]))

    def test_a_share_that_was_measured_is_in_the_state(self, bench: Bench, place: Path) -> None:
        own = bench.there(place / "packed.lmdb", decode="split", **AUGMENT)
        assert "split" not in own.state_dict()
        batches = iter(own)
        next(batches)
        state = own.state_dict()
        assert own.stats.decode.endswith("/s") or "(the double)" in own.stats.decode
        expected = next(batches)[0]
        again = bench.there(place / "packed.lmdb", decode="split", **AUGMENT)
        again.load_state_dict(state | {"split": 370})
        assert again.state_dict()["split"] == 370
        assert again.stats.decode.startswith("37.0% on the CPU")
        again.load_state_dict(state)
        assert torch.equal(next(iter(again))[0], expected)

    def test_a_state_of_another_split(self, bench: Bench, place: Path) -> None:
        own = bench.there(place / "packed.lmdb", decode=Split(0.25), **AUGMENT)
        state = own.state_dict()
        assert state["split"] == 250
        own.load_state_dict(state)
        with pytest.raises(StateError, match="another split: expected 250 of 1000 positions on the CPU, found 300"):
            own.load_state_dict(state | {"split": 300})
        for share in (1001, -1, 0.3, True, "250"):
            with pytest.raises(StateError, match="split of a loader's state must be a whole number up to 1000"):
                own.load_state_dict(state | {"split": share})
        here(place / "packed.lmdb", **AUGMENT).load_state_dict(state)  # ids are the same for any decoder

    def test_a_copy_keeps_what_was_measured(self, bench: Bench, place: Path) -> None:
        own = bench.there(place / "packed.lmdb", decode="split", **AUGMENT)
        next(iter(own))
        copy = pickle.loads(pickle.dumps(own))
        assert copy.options.decode == Split(own.state_dict()["split"] / 1000, 0.75)

    def test_cores_bound_the_threads(self, bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("iofast.loader.resources.cores_of_rank", lambda: 8)
        for how, workers_ in ((Split(0.5), 6), (Split(0.5, 0.3), 2), (Split(0.5, 0.01), 1), ("gpu", 8)):
            own = bench.there(place / "packed.lmdb", decode=how, num_workers="auto", **AUGMENT)
            assert own._resources.limits.max_workers == workers_


class TestAuto:
    def test_the_choice_is_logged(self, bench: Bench, place: Path, caplog: pytest.LogCaptureFixture) -> None:
        own = bench.there(place / "packed.lmdb", decode="auto", **AUGMENT)
        with caplog.at_level(logging.INFO, "iofast"):
            same(own, here(place / "packed.lmdb", **AUGMENT))
        assert own.stats.decode.startswith("on the CPU: CPU ")  # Pillow in one thread against the kernel in two
        assert [each for each in caplog.messages if each == f"decode='auto': {own.stats.decode}"]
        assert own.stats.decode in str(own.stats)
        assert "split" not in own.state_dict()

    def test_a_device_that_is_faster(self, bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rates = decoding_module.Rates(1000, 50_000, 20_000)
        monkeypatch.setattr("iofast.loader.fast.measure", lambda *about: rates)
        own = bench.there(place / "packed.lmdb", decode="auto", **AUGMENT)
        same(own, here(place / "packed.lmdb", **AUGMENT))
        assert own.stats.decode.startswith("on the device: CPU 1,000/s, device 20,000/s")
        assert own.stats.ways["device"] == 24

    def test_no_library_works(self, bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(device: Any, threads: int) -> Any:
            raise OptionError("JPEGs cannot be decoded on the device: nvImageCodec: no nvjpeg")

        monkeypatch.setattr(decoding_module, "open_decoder", fails)
        own = bench.there(place / "packed.lmdb", decode="auto", **AUGMENT)
        same(own, here(place / "packed.lmdb", **AUGMENT))
        assert own.stats.decode == "on the CPU: JPEGs cannot be decoded on the device: nvImageCodec: no nvjpeg"
        for how in ("gpu", "split"):
            with pytest.raises(OptionError, match="no nvjpeg"):
                next(iter(bench.there(place / "packed.lmdb", decode=how, **AUGMENT)))

    def test_a_device_without_memory_for_it(self, bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*about: Any, **more: Any) -> Any:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr("iofast.loader.fast.measure", full)
        own = bench.there(place / "packed.lmdb", decode="auto", **AUGMENT)
        same(own, here(place / "packed.lmdb", **AUGMENT))
        assert own.stats.decode == "on the CPU: CUDA out of memory"
        with pytest.raises(torch.cuda.OutOfMemoryError):
            next(iter(bench.there(place / "packed.lmdb", decode="split", **AUGMENT)))

    def test_broken_images_do_not_stop_it(self, bench: Bench, place: Path) -> None:
        own = bench.there(place / "broken.lmdb", decode="split", on_error="drop", **AUGMENT)
        assert sum(len(images) for images, _ in own) == 37

    def test_one_batch(self, bench: Bench, place: Path) -> None:
        own = bench.there(place / "packed.lmdb", 24, decode="split", **AUGMENT)
        assert len(next(iter(own))[0]) == 24


class TestWithoutAGpu:
    @pytest.mark.parametrize("how", ["gpu", "split", Split(0.5)], ids=str)
    def test_the_error_is_one_line(self, place: Path, how: Any) -> None:
        with pytest.raises(
            OptionError, match=r"^decode=.* is not available: it needs an NVIDIA GPU .* found device='cpu'$"
        ):
            here(place / "packed.lmdb", decode=how, **AUGMENT)

    def test_auto_uses_the_cpu(self, place: Path) -> None:
        own = here(place / "packed.lmdb", decode="auto", **AUGMENT)
        same(own, here(place / "packed.lmdb", **AUGMENT))
        assert own.stats.decode == "on the CPU: it needs an NVIDIA GPU (device='cuda'), found device='cpu'"
        assert here(place / "packed.lmdb", **AUGMENT).stats.decode == "on the CPU"

    @pytest.mark.parametrize("how", ["tpu", None, 0.4, True])
    def test_invalid_values(self, place: Path, how: Any) -> None:
        with pytest.raises(OptionError, match="decode must be 'cpu', 'gpu', 'split' or 'auto', found"):
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
    def test_is_refused_and_auto_uses_the_cpu(
        self, bench: Bench, place: Path, options: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(OptionError, match=f"^decode='gpu' is not available: .*{reason}"):
            bench.there(place / "packed.lmdb", **options)
        own = here(place / "packed.lmdb", decode="auto", **options)
        assert own.stats.decode.startswith("on the CPU: ")
        assert own._resources.decoding.share == 1000

    def test_a_dataset_without_images(self, bench: Bench, place: Path) -> None:
        fields = FastDataset(place / "packed.lmdb", fields=["label"])
        with pytest.raises(OptionError, match="have no image"):
            bench.there(fields)
