"""100,000 failed decodes leave nothing behind.

The images are truncated, cut in the header, of other formats, or no images. A failed slot is zero.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from kernel_images import batch_of
from PIL import Image

from iofast.kernel import Context, DecodeOptions, decode_batch
from tools.scenes import Camera, Surfaces, photograph
from tools.torture import Failed
from tools.torture._memory import HEADER, watched

ROUNDS = 100_000


def run() -> list[str]:
    return [*HEADER, watched("images", _failures(_damaged()))]


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


def _failures(payloads: list[bytes]) -> Iterator[int]:
    rows = len(payloads)
    source, _alive = batch_of(payloads)
    boxes = np.tile(np.array([0, 0, 128, 96, 64, 64, 0, 0], np.int32), (rows, 1))
    flips, out, status = np.zeros(rows, np.uint8), np.empty((rows, 64, 64, 3), np.uint8), np.zeros(rows, np.int32)
    context = Context(DecodeOptions())
    for _ in range(-(-ROUNDS // rows)):
        decode_batch(context, source, boxes, flips, out, status, 0, rows)
        if not status.all() or out.any():
            raise Failed(f"statuses {status.tolist()}, or a failed slot that is not zero")
        yield rows
    context.close()
