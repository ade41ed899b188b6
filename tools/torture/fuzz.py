"""No damaged image crashes the kernel, makes it read or write where it should not, or has ways of decoding disagree.

Thirty minutes of mutated JPEGs, on a build with address and undefined-behaviour sanitizers. Most are changed anywhere
and go through read_header, decode, decode_batch, part_batch, transcode and rewrite. The others are small files, most
with restart markers, damaged in headers, markers, tables and entropy-coded data; they go through our region decoder,
the splice and libjpeg, strict and not, at full and reduced size. What is not an image may raise DecodeError or set a
status, and nothing else; of a whole image all ways must make the same status and pixels, and a region must be a part of
it. No step may take a minute.

A run that was interrupted goes on where it was, on the same commit.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

SECONDS = 1800
ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / "build" / "fuzz.json"  # commit, seconds and counts so far
LAST = Path("/dev/shm/iofast-fuzz-last.jpg")  # what a crash was about
MAX_PIXELS = 1 << 20
BLIND = 8  # mutations anywhere for one in a known place, which takes as long
HANGS = 60  # seconds after which a step is taken for a hang
REDUCED = (("splice", "avx2"), ("splice", "scalar"), ("libjpeg", "avx2"))  # our own decoder does not scale
ROUTES = (("own", "avx512"), ("own", "avx2"), ("own", "scalar"), ("splice", "avx2"), ("libjpeg", "avx2"))


def run() -> list[str]:
    from tools.torture import Failed  # here, because the fuzzing process has no `tools`
    from tools.torture.__main__ import commit

    state = {"commit": commit(), "seconds": 0.0, "runs": 0, "counts": {}}
    if STATE.exists() and (saved := json.loads(STATE.read_text()))["commit"] == state["commit"]:
        state = saved
    STATE.parent.mkdir(exist_ok=True)
    STATE.write_text(json.dumps({**state, "runs": state["runs"] + 1}))
    script = ROOT / "tools" / "sanitize.sh"
    result = subprocess.run([script, sys.executable, "--", __file__, str(SECONDS)], cwd=ROOT)
    if result.returncode:
        STATE.unlink()  # the next run begins anew
        raise Failed(f"exit status {result.returncode}; the report stands above, the image is {LAST}")
    state = json.loads(STATE.read_text())
    STATE.unlink()
    return findings(state["seconds"], state["runs"], Counter(state["counts"]))


def findings(seconds: float, runs: int, counts: Counter[str]) -> list[str]:
    ways = ", ".join(f"{way} {counts[way]:,}" for way in ("segments", "rows", "splice", "libjpeg"))
    return [
        f"- {counts['blind'] + counts['built']:,} mutated images in {seconds / 60:.1f} minutes, {runs} run(s)",
        f"- {counts['blind']:,} changed anywhere: {counts['decoded']:,} could still be decoded and transcoded whole, "
        f"{counts['rewritten']:,} of them were rewritten with other markers and tables, and gave the same pixels; "
        f"{counts['rows good']:,} of as many batch rows, with random boxes, filters and orientations, gave pixels",
        f"- {counts['parts']:,} gave a part for a decoder elsewhere, and the twin the same bytes; the others neither",
        f"- {counts['built']:,} damaged in markers, tables and entropy-coded data, in {len(ROUTES)} ways each: "
        f"{counts['compared']:,} decodes of whole images agreed with libjpeg's in status and pixels, "
        f"{counts['whole good']:,} of them good; of {counts['regions']:,} regions {counts['regions good']:,} were good",
        f"- how the good ones were decoded: {ways}",
    ]


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


class Anywhere:
    """Blind mutations through every function of the kernel."""

    def __init__(self, rng: np.random.Generator, counts: Counter[str]) -> None:
        from iofast import kernel

        self.kernel, self.rng, self.counts, self.seeds = kernel, rng, counts, corpus()
        options = itertools.product(kernel.FILTERS, (False, True), (False, True))
        self.contexts = [kernel.Context(kernel.DecodeOptions(*each, max_pixels=MAX_PIXELS)) for each in options]
        self.recipe = kernel.TranscodeRecipe(size=32, mode="short", max_pixels=MAX_PIXELS)

    def step(self) -> None:
        from iofast.errors import DecodeError
        from iofast.kernel import native, twin

        data = mutate(self.rng, self.seeds[self.rng.integers(len(self.seeds))])
        LAST.write_bytes(data)
        self.counts["blind"] += 1
        self.counts["rows good"] += self.batch(data)
        written = None
        with contextlib.suppress(DecodeError):
            written = native.rewrite(data, int(self.rng.integers(9)), int(self.rng.integers(-1, 101)), MAX_PIXELS)
        with contextlib.suppress(DecodeError):
            header = self.kernel.read_header(data)
            if header.width * header.height <= MAX_PIXELS:
                self.kernel.decode(data)
                if written is not None:  # the twin's eyes: one decoder for both, whatever the coefficients
                    assert np.array_equal(twin.decode(written), twin.decode(data))
                    self.counts["rewritten"] += 1
                self.kernel.transcode(data, self.recipe)
                self.counts["decoded"] += 1

    def batch(self, data: bytes) -> int:
        from iofast.kernel import Payloads

        rng, context = self.rng, self.contexts[self.rng.integers(len(self.contexts))]
        payload = np.frombuffer(data, np.uint8)
        address, size = np.array([payload.ctypes.data], np.uint64), np.array([payload.size], np.uint64)
        orientation = np.array([rng.integers(1, 9)], np.uint8)
        source = Payloads(np.array([-1], np.int32), address, size, None, orientation, None)
        (x0, x1), (y0, y1) = np.sort(rng.integers(0, 62, 2)), np.sort(rng.integers(0, 62, 2))
        box = np.array([[x0, y0, x1 + 1, y1 + 1, *rng.integers(24, 60, 2), 0, 0]], np.int32)
        box[0, 6:] = rng.integers(0, box[0, 4:6] - (20, 24) + 1)
        if rng.random() < 0.1:  # a box that cannot be
            box[0, rng.integers(8)] = rng.choice((-(2**31), -1, 0, 1, 63, 70_000, 2**31 - 1))
        out, status = np.full((1, 24, 20, 3), 7, np.uint8), np.zeros(1, np.int32)
        self.kernel.decode_batch(context, source, box, rng.integers(0, 2, 1, np.uint8), out, status, 0, 1)
        assert status[0] == 0 or not out.any(), "a failed slot is not zero"
        self.part(context, source, box)
        return int(status[0] == 0)

    def part(self, context, source, box) -> None:
        """Native code and twin write the same part of a JPEG, or refuse alike, and nothing beside it."""
        from iofast.kernel import Parts, parts, twin

        length = int(source.lengths[0]) + int(self.rng.choice((64, 64, 64, 30, 0)))
        places, made = np.array([5, 5 + length], np.int64), []
        for call, own in ((self.kernel.part_batch, context), (parts.part_batch, twin.Context(context.options))):
            part, status = (
                Parts(np.full(length + 10, 7, np.uint8), places, np.zeros((1, 9), np.int32)),
                np.zeros(1, np.int32),
            )
            call(own, source, box, (24, 20), part, status, 0, 1)
            made.append((int(status[0]), part.table.tolist(), part.out.tobytes()))
            assert (part.out[:5] == 7).all(), "something was written before its place"
            assert (part.out[5 + int(part.table[0, 0]) :] == 7).all(), "something was written behind a part"
        assert made[0] == made[1], "native code and twin differ in a part"
        self.counts["parts"] += made[0][0] == 0


class InPlaces:
    """Damage in known places of small files, through every way to decode a region."""

    def __init__(self, rng: np.random.Generator, counts: Counter[str]) -> None:
        import jpeg_damage
        import region_images

        from iofast.kernel import DecodeOptions

        self.rng, self.counts, self.images, self.damage = rng, counts, region_images, jpeg_damage.damage
        kinds = itertools.product((True, False), (False, True))
        self.decoders = [
            (
                fast,
                region_images.Decoder(
                    DecodeOptions(strict=strict, fast=fast, max_pixels=MAX_PIXELS), REDUCED if fast else ROUTES
                ),
            )
            for strict, fast in kinds
        ]
        self.seeds = [self.seed() for _ in range(100)]

    def seed(self):
        images, rng = self.images, self.rng
        width, height = (int(v) for v in rng.integers(1, int(rng.choice((20, 70, 140))), 2))
        sampling = str(rng.choice((*images.OWN, *images.OWN, *images.SAMPLING)))
        row = images.Drawn(b"", sampling, width, height, 0).across
        restart, quality = int(rng.choice((0, 1, 1, 2, 3, row, row, 9))), int(rng.choice((20, 90, 98)))
        return images.encode(images.texture(rng, width, height), sampling, restart, quality, bool(rng.integers(2)))

    def step(self) -> None:
        rng = self.rng
        chosen = int(rng.integers(len(self.seeds)))
        if rng.random() < 0.1:
            self.seeds[chosen] = self.seed()
        data = self.damage(self.seeds[chosen].data, rng)
        LAST.write_bytes(data)
        self.counts["built"] += 1
        fast, decoder = self.decoders[rng.integers(len(self.decoders))]
        self.compare(decoder, data, int(rng.choice((2, 4, 8))) if fast else 1)

    def compare(self, decoder, data: bytes, scale: int) -> None:
        """The whole image in every way, and a region of it."""
        width, height = self.images.claimed_size(data, MAX_PIXELS)
        whole = self.images.Box(0, 0, width, height)
        drawn = self.images.Drawn(data, "444", width, height, 0)
        boxes = [whole, *self.images.draw_boxes(self.rng, drawn, 1)[-1:]]
        results = {route: decoder.regions(route, data, boxes, scale) for route in decoder.contexts}
        right = results[ROUTES[-1]]
        for route, (statuses, pictures, ways) in results.items():
            assert statuses[0] == right[0][0], f"{route}: status {statuses[0]}, libjpeg's is {right[0][0]}"
            for box, status, pixels, way in zip(boxes, statuses, pictures, ways, strict=True):
                assert status == 0 or not pixels.any(), "a failed slot is not zero"
                self.counts[way or "none"] += 1
                if scale == 1 and statuses[0] == status == 0:
                    part = self.images.cut(right[1][0], box)
                    assert np.array_equal(pixels, part), f"{route}: other pixels than libjpeg's in {box}"
            assert np.array_equal(pictures[0], right[1][0]), f"{route}: other pixels than libjpeg's at 1/{scale}"
            self.counts.update({"compared": 1, "whole good": statuses[0] == 0, "regions": 1})
            self.counts["regions good"] += statuses[1:].count(0)


def fuzz(seconds: float) -> None:
    """Until `seconds` are over, those of earlier runs counted in."""
    from iofast.kernel import _native

    assert Path(_native.__file__).is_relative_to(os.environ["IOFAST_BUILD"]), f"no sanitizers: {_native.__file__}"
    sys.path.append(str(ROOT / "tests" / "support"))
    state = json.loads(STATE.read_text())
    rng, counts = np.random.default_rng(time.time_ns()), Counter(state["counts"])
    anywhere, in_places = Anywhere(rng, counts), InPlaces(rng, counts)
    began = saved = time.monotonic()
    before = state["seconds"]
    while state["seconds"] < seconds:
        for _ in range(BLIND):
            anywhere.step()
        in_places.step()
        now = time.monotonic()
        state["seconds"] = before + now - began
        if now - saved > 5:
            faulthandler.dump_traceback_later(HANGS, exit=True)
        if now - saved > 5 or state["seconds"] >= seconds:
            saved = now
            whole = json.dumps({**state, "counts": counts})
            STATE.with_suffix(".new").write_text(whole)
            STATE.with_suffix(".new").replace(STATE)


if __name__ == "__main__":
    fuzz(float(sys.argv[1]))
