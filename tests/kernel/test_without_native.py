"""The little that works where the C code was not built; all else is refused with what to install."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from kernel_images import View, batch_of, decode_views, exif, expected, jpeg, photo, save, upright, whole
from PIL import Image
from places import ROOT

from iofast import kernel
from iofast.errors import DecodeError, OptionError
from iofast.kernel import DecodeOptions, Finish, Status, TranscodeRecipe, without_native
from iofast.kernel.contract import MAX_PIXELS
from iofast.work import no_work

PHOTO = photo(90, 60)
WINDOW = View((7, 5, 81, 52, 60, 40, 3, 2), (50, 30), flip=True)
REMEDY = re.escape("install a wheel, or apt-get install gcc python3-dev libjpeg-dev and install iofast again")


def decoded(
    payloads: list[bytes], view: View, orientations: list[int] | None = None, options: DecodeOptions | None = None
) -> tuple[list[int], np.ndarray]:
    source, _alive = batch_of(payloads, orientations, checked=True)
    return decode_views(source, [view] * len(payloads), options, backend=without_native)


@pytest.mark.parametrize("filter", ["nearest", "bilinear", "lanczos"])
def test_crops_are_pillows(filter: str) -> None:
    payloads = [jpeg(PHOTO), save(Image.fromarray(PHOTO), "PNG"), jpeg(PHOTO, "L")]
    status, out = decoded(payloads, WINDOW, options=DecodeOptions(filter))
    assert status == [0, 0, 0]
    for data, pixels in zip(payloads, out, strict=True):
        np.testing.assert_array_equal(pixels, expected(upright(data), WINDOW, filter))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_made_upright(orientation: int) -> None:
    image = upright(jpeg(PHOTO), orientation)
    status, (pixels,) = decoded([jpeg(PHOTO)], whole(*image.size), [orientation])
    assert status == [0]
    np.testing.assert_array_equal(pixels, np.asarray(image))


def test_rows_fail_alone() -> None:
    good = jpeg(PHOTO)
    status, out = decoded([good[:900], b"no image", good], WINDOW)
    assert status == [Status.TRUNCATED, Status.UNSUPPORTED, Status.OK]
    assert not out[:2].any()
    assert decoded([good], WINDOW._replace(box=(7, 5, 91, 52, 60, 40, 3, 2)))[0] == [Status.BOX]
    huge = (0, 0, 90, 60, MAX_PIXELS, 30, 0, 0)
    assert decoded([good], WINDOW._replace(box=huge))[0] == [Status.LIMIT]


def test_each_into_its_own_array_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "decode_batch", without_native.decode_batch)
    payloads = [jpeg(PHOTO), b"no image", jpeg(photo(40, 30))]
    views = [whole(90, 60), whole(90, 60), whole(40, 30)]
    finish = Finish(no_work(3), np.float32([[0.5] * 3, [1] * 3]), np.zeros((0, 3), np.float32), "float32")
    source, _alive = batch_of(payloads)
    outs = [np.full((view.size[1], view.size[0], 3), 9, np.float32) for view in views]
    boxes, status = np.array([view.box for view in views], np.int32), np.zeros(3, np.int32)
    context: Any = without_native.Context(DecodeOptions())
    kernel.decode_each(context, source, boxes, np.zeros(3, np.uint8), outs, status, finish)
    assert status.tolist() == [0, Status.UNSUPPORTED, 0]
    for out, data in ((outs[0], payloads[0]), (outs[2], payloads[2])):
        np.testing.assert_array_equal(out, np.asarray(upright(data)) * np.float32(0.5) + 1)
    assert not outs[1].any()


@pytest.mark.parametrize("mode", ["short", "exact", "crop"])
def test_packing_resizes_to_jpeg(mode: str) -> None:
    recipe = TranscodeRecipe(40, mode, subsampling="444", quality=95, restart="auto")
    made = without_native.transcode(jpeg(PHOTO, exif=exif(6)), recipe)
    image = Image.open(BytesIO(made.data))
    assert made[1:] == ("jpg", *image.size, 1, 60, 90)
    assert image.size == {"short": (40, 60), "exact": (40, 40), "crop": (40, 40)}[mode]
    wanted = upright(jpeg(PHOTO), 6).resize((40, 40) if mode == "exact" else (40, 60), Image.Resampling.BILINEAR)
    wanted = wanted.crop((0, 10, 40, 50)) if mode == "crop" else wanted
    assert np.abs(np.asarray(image, int) - np.asarray(wanted)).mean() < 4


def test_packing_lays_transparency_over_white_and_has_limits() -> None:
    clear, strip = Image.new("RGBA", (60, 40), (200, 0, 0, 0)), Image.new("RGB", (5000, 1))
    made = without_native.transcode(save(clear, "PNG"), TranscodeRecipe(size=20, mode="short"))
    assert np.asarray(Image.open(BytesIO(made.data))).min() >= 254
    for data, limit in (
        (jpeg(PHOTO), 5000),
        (save(strip, "PNG"), 1 << 28),
        (b"no image", 5),
        (jpeg(PHOTO)[:900], 9000),
    ):
        with pytest.raises(DecodeError, match=r"limit|not an image|truncated"):
            without_native.transcode(data, TranscodeRecipe(size=300, mode="short", max_pixels=limit))


SHORT: dict[str, Any] = {"size": 9, "mode": "short"}
RECIPES: list[dict[str, Any]] = [{}, {"format": "keep"}, SHORT | {"format": "rgb"}, SHORT | {"restart": 4}]
REFUSED: dict[str, Callable[[], object]] = {
    "exact": lambda: without_native.Context(DecodeOptions(exact=True)),
    "padding": lambda: without_native.Context(DecodeOptions(clip=True)),
    "aliased": lambda: without_native.Context(DecodeOptions("bilinear-aliased")),
    "measuring": lambda: without_native.Context(DecodeOptions(), timed="all"),
    "filter of a row": lambda: decoded([jpeg(PHOTO)], WINDOW._replace(flip=4)),
    **{str(each): lambda each=each: without_native.check_recipe(TranscodeRecipe(**each)) for each in RECIPES},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", REFUSED)
def test_all_else_is_refused_with_the_remedy(name: str) -> None:
    with pytest.raises(OptionError, match=rf"needs iofast's native kernel, which is missing here: {REMEDY}$"):
        REFUSED[name]()


def test_bytes_and_checksums(tmp_path: Path) -> None:
    assert without_native.crc32c(memoryview(b"456789"), google_crc32c.value(b"123")) == 0xE3069283
    (tmp_path / "file").write_bytes(bytes(range(100)))
    with (tmp_path / "file").open("rb") as file:
        rows = without_native.read_rows(file.fileno(), np.array([90, 0, 7]), 10)
        assert rows.tolist() == [list(range(at, at + 10)) for at in (90, 0, 7)]
        with pytest.raises(EOFError):
            without_native.read_rows(file.fileno(), np.array([95]), 10)


_PROGRAM = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from iofast import FastDataset, FastLoader, kernel, pack, transforms as T
said = [str(each.message) for each in caught if each.category is RuntimeWarning]
def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
images, packed = sys.argv[1:]
report = pack(images, packed, resize=32, workers=1, progress=False)
dataset = FastDataset(packed)
shapes = []
for transform in (T.train(16), T.evaluate(16)):
    for batch, labels in FastLoader(dataset, 4, transform=transform, num_workers=1):
        shapes.append([str(batch.dtype), list(batch.shape), labels.tolist() and float(batch.std()) > 0.1])
(first, _) = next(iter(FastLoader(FastDataset(images), 4, transform=[T.Resize((40, 60))], shuffle=False)))
print(json.dumps({
    "said": said, "backend": kernel.backend, "packed": report.packed, "shapes": shapes,
    "first": first[0].permute(1, 2, 0).tolist(), "item": dataset[0][0].size,
    "keep": refusal(lambda: pack(images, packed, overwrite=True)),
    "jitter": refusal(lambda: list(FastLoader(dataset, 4, transform=[T.CenterCrop(16), T.ColorJitter(0.4)]))),
}))
"""


def test_a_package_without_the_module_packs_and_loads(tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns("_native*", "src", "__pycache__")
    shutil.copytree(ROOT / "iofast", tmp_path / "site" / "iofast", ignore=left_out)
    for number in range(4):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(photo(90, 60, number)))
    command = [sys.executable, "-c", _PROGRAM, tmp_path / "images", tmp_path / "out.lmdb"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    found = json.loads(run.stdout)
    (warning,) = found["said"]
    assert warning.startswith("iofast's native kernel is missing (it was not built): decoding runs on Pillow")
    assert (found["backend"], found["packed"], found["item"]) == ("pillow", 4, [48, 32])
    assert found["shapes"] == [["torch.float32", [4, 3, 16, 16], True]] * 2
    image = Image.open(tmp_path / "images" / "a" / "0.jpg").resize((60, 40), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(np.array(found["first"], np.uint8), np.asarray(image))
    for refused in ("keep", "jitter"):
        assert re.search(REMEDY, found[refused]), found[refused]
        assert "\n" not in found[refused]
