"""Resident memory is flat over 100,000 failed decodes, in the native kernel and in its twin.

The images are truncated, cut in the header, of other formats, or no images.
"""

from __future__ import annotations

import gc
import io
import os
from types import ModuleType

import numpy as np
import psutil
from kernel_images import batch_of
from PIL import Image
from tqdm import tqdm

from iofast.kernel import DecodeOptions, native, twin
from tools.scenes import Camera, Surfaces, photograph
from tools.torture import Failed

ROUNDS = 100_000
ALLOWED = 4 << 20  # bytes; a leak of even 50 bytes per failure would be more


def run() -> list[str]:
    payloads = _damaged()
    return [_failures(backend, payloads) for backend in (native, twin)]


def _damaged() -> list[bytes]:
    rng = np.random.default_rng(1)
    image = Image.fromarray(photograph("meadow", Camera(rng, Surfaces(1), 96, 128)))
    cuts = []
    for name, options in (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {})):
        buffer = io.BytesIO()
        image.save(buffer, name, **options)
        whole = buffer.getvalue()
        cuts += [whole[: int(len(whole) * share)] for share in (0.02, 0.1, 0.5, 0.9)]
    return [*cuts, b"", b"\xff\xd8", b"not an image at all", rng.bytes(1000), b"\xff\xd8" + rng.bytes(1000)]


def _failures(backend: ModuleType, payloads: list[bytes]) -> str:
    rows = len(payloads)
    source, _alive = batch_of(payloads)
    boxes = np.tile(np.array([0, 0, 128, 96, 64, 64, 0, 0], np.int32), (rows, 1))
    flips, out, status = np.zeros(rows, np.uint8), np.empty((rows, 64, 64, 3), np.uint8), np.zeros(rows, np.int32)
    context, process, failed, resident = backend.Context(DecodeOptions()), psutil.Process(os.getpid()), 0, []
    name = backend.__name__.rsplit(".", 1)[-1]
    with tqdm(total=ROUNDS, desc=name, unit="failure") as bar:
        while failed < ROUNDS:
            backend.decode_batch(context, source, boxes, flips, out, status, 0, rows)
            if not status.all() or out.any():
                raise Failed(f"{name}: statuses {status.tolist()}, or a failed slot that is not zero")
            failed += rows
            bar.update(rows)
            if failed // 5_000 > len(resident):
                gc.collect()
                resident.append(process.memory_info().rss)
    context.close()
    growth = max(resident[2:]) - resident[2]
    if growth > ALLOWED:
        raise Failed(f"{name}: resident memory grew by {growth / 2**20:.1f} MiB over {ROUNDS} failures")
    return f"- {name}: {failed:,} failures of {rows} kinds, resident memory grew by {growth / 2**10:.0f} KiB"
