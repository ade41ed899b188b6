"""The memory for one image: estimated before decoding, never too low, and limited."""

import itertools
import json
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_images import claims, exif, jpeg, photo, save
from numpy.typing import NDArray
from PIL import Image, features

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import contract, memory, native, native_batch, other_formats, pillow
from iofast.kernel.contract import DecodeOptions, Status, TranscodeRecipe
from tools.odd_images.profiles import WIDE, cmyk_profile, rgb_profile

SIDE = 2000
SLACK = 8 << 20  # bytes: buffers of libraries and memory kept by the allocator
RECIPES = {
    "small": TranscodeRecipe(size=64, mode="short"),
    "pad": TranscodeRecipe(size=SIDE + 8, mode="pad", only_shrink=True),
    **{format: TranscodeRecipe(format=format) for format in ("jpeg", "png", "webp", "rgb", "keep")},
}
USUAL = ("small", "png", "keep")
FEW = ("png alpha", "webp", "tiff", "jpeg progressive")


def kinds(side: int) -> dict[str, Callable[[], bytes]]:
    """Images for every code path; smooth, so that they are encoded quickly."""
    y, x = np.mgrid[:side, :side]
    pixels = np.stack([x // 16 % 256, y // 16 % 256, (x + y) // 32 % 256], -1).astype(np.uint8)
    image, gray = Image.fromarray(pixels), Image.fromarray(pixels[..., 0])
    alpha = Image.fromarray((x % 256).astype(np.uint8))
    both, pale, few = image.copy(), gray.copy(), image.quantize(16)
    both.putalpha(alpha)
    pale.putalpha(alpha)
    packed: dict[str, Any] = {"compression": "tiff_adobe_deflate", "strip_size": 3 * side**2, "tiffinfo": {278: side}}
    made = {
        "png": lambda: save(image, "PNG", compress_level=1),
        "png gray": lambda: save(gray, "PNG", compress_level=1),
        "png alpha": lambda: save(both, "PNG", compress_level=1, icc_profile=rgb_profile(WIDE)),
        "png gray alpha": lambda: save(pale, "PNG", compress_level=1),
        "png palette": lambda: save(few, "PNG", compress_level=1, transparency=bytes([0, 128] * 8)),
        "png 16": lambda: save(Image.fromarray((x * 16).astype(np.uint16)), "PNG", compress_level=1),
        "png turned": lambda: save(image, "PNG", compress_level=1, exif=exif(6)),
        "webp": lambda: save(both, "WEBP", quality=50, method=0),
        "tiff": lambda: save(image, "TIFF", **packed),
        "tiff cmyk": lambda: save(image.convert("CMYK"), "TIFF", icc_profile=cmyk_profile()),
        "tiff float": lambda: save(Image.fromarray(np.float32(x / side)), "TIFF", tiffinfo={340: 0.0, 341: 1.0}),
        "gif": lambda: save(few, "GIF"),
        "ppm": lambda: b"P6 %d %d 255\n" % (side, side) + pixels.tobytes(),
        "jpeg": lambda: save(image, "JPEG", icc_profile=rgb_profile(WIDE)),
        "jpeg progressive": lambda: save(image, "JPEG", progressive=True, subsampling="4:4:4"),
        "jpeg cmyk": lambda: save(image.convert("CMYK"), "JPEG", progressive=True),
    }
    if features.check("avif"):
        made["avif"] = lambda: save(both, "AVIF", quality=40, speed=10)
    return made


def measure(folder: Path, every: bool) -> None:
    """Print estimates and measurements as JSON lines, each image as it is and as if it were large.

    Each is measured in a fork, of a process without large images: the allocator would reuse their memory.
    """
    for make in kinds(40).values():
        kernel.transcode(make(), RECIPES["small"])  # libraries are loaded
    for path, large in itertools.product(sorted(folder.iterdir()), (False, True)):
        contract.LARGE = memory.LARGE = 0 if large else 1 << 24
        native_batch.SHARED = memory._SMALL = 0 if large else 1 << 25
        for name in (RECIPES if path.name in ("png", "jpeg") else USUAL) if every else USUAL[:1]:
            estimated, grown = in_a_child(path.read_bytes(), partial(kernel.transcode, recipe=RECIPES[name]))
            sys.stdout.write(json.dumps([f"{path.name}, {name}, {large}", estimated, grown]) + "\n")
        estimated, grown = in_a_child(path.read_bytes(), load)
        if estimated:  # what the C code makes of a PNG or a WebP is never large
            sys.stdout.write(json.dumps([f"{path.name}, loading", estimated, grown]) + "\n")


def load(data: bytes) -> int:
    """Decode a whole image as a loader does, and resize it: what is made of it does not count."""
    return decoded(data, (64, 64))[0]


def decoded(
    data: bytes, size: tuple[int, int] = (0, 0), **options: int
) -> tuple[int, NDArray[np.uint8], dict[str, int]]:
    """The status of an image that a loader decodes as a whole, its pixels, and the ways that were counted."""
    width, height, orientation = kernel.read_header(data)[1:4]
    across, down = size if any(size) else (width, height)
    box, out = np.array([[0, 0, width, height, across, down, 0, 0]], np.int32), np.empty((1, down, across, 3), np.uint8)
    with closing(native_batch.Context(DecodeOptions(**options))) as context:
        status = native_batch.decode_one(context, data, orientation, box, out)
        return status, out[0], {way: count for way, count in context.counts().ways.items() if count}


def in_a_child(data: bytes, use: Callable[[bytes], object]) -> list[int]:
    end, start = os.pipe()
    child = os.fork()
    if not child:
        try:
            needed = [0]
            memory.check = lambda *args: needed.append(args[2])  # type: ignore[assignment]
            memory.reserved = lambda most: nullcontext(needed.append(most))  # type: ignore[assignment]
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            use(data)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            os.write(start, json.dumps([max(needed), 1024 * grown]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(start)
    with os.fdopen(end) as file:
        found: list[int] = json.load(file)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak has another unit")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_image_takes_more_memory_than_estimated(every: bool, tmp_path: Path) -> None:
    for kind, make in kinds(SIDE).items():
        if every or kind in FEW:
            (tmp_path / kind).write_bytes(make())
    script = f"import pathlib, sys, test_memory; test_memory.measure(pathlib.Path(sys.argv[1]), {every})"
    command = [sys.executable, "-c", script, tmp_path]
    places = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # tools, too
    places["MALLOC_MMAP_THRESHOLD_"] = "1000000"  # freed memory goes back at once, as above 32 MB it always does
    options: dict[str, Any] = {"cwd": Path(__file__).parent, "env": os.environ | places}
    run = subprocess.run(command, capture_output=True, text=True, check=True, **options)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(lines) >= 2 * len(FEW)
    assert [line for line in lines if line[2] > line[1] + SLACK] == []


def test_the_exceeded_limit_is_named() -> None:
    """16,000 x 16,000 pixels: 1 GB in colour, 2.3 GB with transparency."""
    rgb, rgba = claims(b"\2"), claims(b"\6")
    refused = r"limit on memory \(16000x16000 pixels of RGBA take up to 2[0-9]{3} MB, the limit is 2147 MB; pack has"
    for recipe in (TranscodeRecipe(size=64, mode="short"), TranscodeRecipe(format="png")):
        with pytest.raises(DecodeError, match=refused):
            kernel.transcode(rgba, recipe)
        with pytest.raises(DecodeError, match=r"truncated|corrupt"):
            kernel.transcode(rgb, recipe)
        with pytest.raises(DecodeError, match=r"truncated|corrupt"):
            kernel.transcode(rgba, replace(recipe, max_memory=1 << 32))
    data = jpeg(photo(400, 300), progressive=True)
    for image, options, reason in (
        (claims(b"\2", side=20_000), {}, r"pixels \(20000x20000 pixels of RGB, the limit is 268435456; pack has"),
        (
            data,
            {"max_pixels": 119_999},
            r"pixels \(400x300 pixels of RGB, the limit is 119999; pack has --max-pixels\)",
        ),
        (data, {"max_memory": 100_000}, r"memory \(400x300 pixels of RGB take up to .*, the limit is 0.1 MB; pack has"),
    ):
        for format in ("keep", "jpeg", "png", "rgb"):
            with pytest.raises(DecodeError, match=f"limit on {reason}"):
                kernel.transcode(image, TranscodeRecipe(format=format, restart=None, **options))


def test_a_raised_limit_on_pixels_applies_to_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept and cropped JPEGs are decoded in full for validation, which once used the limit of the loader."""
    for module in (native, other_formats):
        monkeypatch.setattr(module.decode, "__defaults__", (1, 1000, 1000))
    for options in ({"format": "keep"}, {"size": 64, "mode": "crop", "subsampling": "444"}, {"format": "png"}):
        for data in (jpeg(photo(120, 90)), jpeg(photo(120, 90), "CMYK"), jpeg(photo(120, 90), progressive=True)):
            assert native.transcode(data, TranscodeRecipe(**options)).original_width == 120


def test_packing_and_loading_name_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg(photo(400, 300), progressive=True)
    with pytest.raises(DecodeError) as packing:
        kernel.transcode(data, TranscodeRecipe(format="keep", max_memory=1000))
    with pytest.raises(DecodeError, match=f"^{re.escape(str(packing.value))}$"):
        native.decode(data, 1, 1 << 20, 1000)
    monkeypatch.setattr(memory.check_whole, "__defaults__", (1000,))
    payload = np.frombuffer(data, np.uint8)
    source = contract.Payloads.in_memory([payload.ctypes.data], [payload.size], [1])
    assert kernel.failure(Status.LIMIT, source, 0) == str(packing.value)


@pytest.mark.parametrize("kind", ["jpeg", "jpeg progressive", "jpeg cmyk", "ppm"])
@pytest.mark.parametrize("most", [memory.MAX_MEMORY, 1000])
def test_a_large_image_is_loaded_within_its_memory(kind: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a size it is decoded in bands."""
    data, waited = kinds(40)[kind](), list[int]()
    monkeypatch.setattr(native_batch, "MAX_MEMORY", most)
    plain = decoded(data)
    monkeypatch.setattr(memory, "reserved", lambda needed: nullcontext(waited.append(needed)))
    for module, name in ((native_batch, "SHARED"), (memory, "LARGE"), (pillow, "_STRIP")):
        monkeypatch.setattr(module, name, 500)
    status, pixels, ways = decoded(data)
    assert (status, ways) == (Status.OK, plain[2])
    np.testing.assert_array_equal(pixels, plain[1])
    assert len(waited) == 1
    assert waited[0] >= 7 * 40 * 40
    with monkeypatch.context() as patch:
        patch.setattr(memory.check_whole, "__defaults__", (1000,))
        patch.setattr(memory.opened, "__defaults__", (*memory.opened.__defaults__[:1], 1000, None))  # type: ignore[index]
        assert decoded(data)[0] == Status.LIMIT
    assert decoded(data, max_pixels=1)[0] == Status.LIMIT


def test_contexts_are_lent_once_and_freed_after_a_large_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the test for an idle context and taking it, another thread could take it: `IndexError`."""

    class Raced(list[native_batch.Context]):
        """An empty list that is true, as the second thread sees it."""

        def __bool__(self) -> bool:
            return True

    idle = {("nearest", True): Raced()}
    monkeypatch.setattr(native_batch, "_idle", idle)
    for pixels, kept in ((contract.LARGE, 1), (contract.LARGE + 1, 0)):
        with native_batch.borrowed("nearest", pixels) as context:
            assert context.handle is not None
        assert len(idle["nearest", True]) == kept


def test_large_images_share_the_memory_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_MEMORY", 100)
    monkeypatch.setattr(memory, "_SMALL", 10)
    begun = threading.Event()

    def other() -> None:
        with memory.reserved(1000):  # more than there is: alone
            begun.set()

    with memory.reserved(60), memory.reserved(60):  # one within the other waits for nobody
        thread = threading.Thread(target=other)
        thread.start()
        with memory.reserved(9):
            assert not begun.wait(0.2)
        child = os.fork()
        if not child:  # has none of these threads
            with memory.reserved(1000):
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    thread.join(10)
    assert begun.is_set()
    assert memory._taken == {}
