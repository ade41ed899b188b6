"""No damaged image crashes the kernel, and none makes it read or write where it should not.

Ten minutes of mutated JPEGs, on a build with address and undefined-behaviour sanitizers, through read_header, decode,
decode_batch, transcode and rewrite. What is not an image may raise DecodeError or set a status, and nothing else.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

SECONDS = 600


def run() -> list[str]:
    from tools.torture import Failed  # here, because the fuzzing process has no `tools`

    script = Path(__file__).parents[1] / "sanitize.sh"
    result = subprocess.run([script, sys.executable, "--", __file__, str(SECONDS)], stdout=subprocess.PIPE, text=True)
    if result.returncode:
        raise Failed(f"exit status {result.returncode}; the report stands above")
    return [line for line in result.stdout.splitlines() if line.startswith("- ")]


def corpus() -> list[bytes]:
    """Small JPEGs of every kind: gray, colour, CMYK, progressive, subsamplings, restart markers, EXIF."""
    rng = np.random.default_rng(3)
    smooth = np.cumsum(np.cumsum(rng.normal(0, 1, (61, 83, 3)), 0), 1)
    colour = Image.fromarray(np.uint8(255 * (smooth - smooth.min()) / np.ptp(smooth)))
    exif = Image.Exif()
    exif[0x0112] = 6
    options = [
        *({"subsampling": s, "progressive": p} for s in (0, 1, 2) for p in (False, True)),
        {"restart_marker_blocks": 2},
        {"restart_marker_rows": 1, "optimize": True},
        {"exif": exif.tobytes(), "quality": 30},
    ]
    return [_encode(colour.convert(mode), each) for mode in ("RGB", "L", "CMYK") for each in options]


def _encode(image: Image.Image, options: dict[str, object]) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def mutate(rng: np.random.Generator, data: bytes) -> bytes:
    """One to eight changes: bits, bytes, runs, cuts, repeats; half of them in the header, where sizes stand."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 9)):
        if len(changed) < 4:
            break
        end = min(len(changed), 700) if rng.random() < 0.5 else len(changed)
        at = int(rng.integers(0, end))
        kind = rng.integers(6)
        if kind == 0:
            changed[at] ^= 1 << rng.integers(8)
        elif kind == 1:
            changed[at] = int(rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0xD0, 0xD9, 0xDA)))
        elif kind == 2:
            changed[at : at + 2] = rng.bytes(2)
        elif kind == 3:
            del changed[at : at + int(rng.integers(1, 40))]
        elif kind == 4:
            changed[at:at] = changed[at : at + int(rng.integers(1, 40))]
        else:
            del changed[at + 2 :]
    return bytes(changed)


def fuzz(seconds: float) -> None:
    """Until the time is over; prints what was done."""
    from iofast import kernel
    from iofast.errors import DecodeError
    from iofast.kernel import native, twin

    rng, seeds = np.random.default_rng(time.time_ns()), corpus()
    counts = {"tried": 0, "decoded": 0, "rewritten": 0, "rows good": 0}
    options = [
        kernel.DecodeOptions(filter, fast, strict, max_pixels=1 << 20)
        for filter, fast, strict in itertools.product(kernel.FILTERS, (False, True), (False, True))
    ]
    contexts = [kernel.Context(each) for each in options]
    recipe = kernel.TranscodeRecipe(size=32, mode="short", max_pixels=1 << 20)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = mutate(rng, seeds[rng.integers(len(seeds))])
        Path("/dev/shm/iofast-fuzz-last.jpg").write_bytes(data)  # what a crash was about
        counts["tried"] += 1
        counts["rows good"] += _batch(kernel, contexts[rng.integers(len(contexts))], rng, data)
        written = None
        with contextlib.suppress(DecodeError):
            written = native.rewrite(data, int(rng.integers(9)), int(rng.integers(-1, 101)), 1 << 20)
        try:
            header = kernel.read_header(data)
            if header.width * header.height <= 1 << 20:
                kernel.decode(data)
                if written is not None:  # the twin's eyes: one decoder for both, whatever the coefficients
                    assert np.array_equal(twin.decode(written), twin.decode(data))
                    counts["rewritten"] += 1
                kernel.transcode(data, recipe)
                counts["decoded"] += 1
        except DecodeError:
            pass
    print(f"- {counts['tried']:,} mutated images; {counts['decoded']:,} could still be decoded and transcoded whole")
    print(f"- {counts['rewritten']:,} of these were rewritten with other markers and tables, and gave the same pixels")
    print(f"- {counts['rows good']:,} of as many batch rows, with random boxes, filters and orientations, gave pixels")


def _batch(kernel, context, rng: np.random.Generator, data: bytes) -> int:
    payload = np.frombuffer(data, np.uint8)
    address, size = np.array([payload.ctypes.data], np.uint64), np.array([payload.size], np.uint64)
    source = (np.array([-1], np.int32), address, size, None, np.array([rng.integers(1, 9)], np.uint8))
    (x0, x1), (y0, y1) = np.sort(rng.integers(0, 62, 2)), np.sort(rng.integers(0, 62, 2))
    box = np.array([[x0, y0, x1 + 1, y1 + 1, *rng.integers(24, 60, 2), 0, 0]], np.int32)
    box[0, 6:] = rng.integers(0, box[0, 4:6] - (20, 24) + 1)
    if rng.random() < 0.1:  # a box that cannot be
        box[0, rng.integers(8)] = rng.choice((-(2**31), -1, 0, 1, 63, 70_000, 2**31 - 1))
    out, status = np.full((1, 24, 20, 3), 7, np.uint8), np.zeros(1, np.int32)
    kernel.decode_batch(context, source, box, rng.integers(0, 2, 1, np.uint8), out, status, 0, 1)
    assert status[0] == 0 or not out.any(), "a failed slot is not zero"
    return int(status[0] == 0)


if __name__ == "__main__":
    fuzz(float(sys.argv[1]))
