"""MosaicML Streaming's MDSWriter: three splits, each compressed in another way, and what it wrote into them.

Pickles and arrays are among the columns, which iofast leaves out: it must find its way past them.
"""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import sys

import numpy as np
import torch
from PIL import Image

# As in read_timm: Streaming imports torchvision, which cannot be imported beside a torch without CUDA unless the
# operators exist that it speaks of. Writing needs none.
operators = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from streaming.base import MDSWriter  # noqa: E402  (after that)

COLUMNS = {
    "image": "jpeg",  # the file's own bytes, as it takes them from an image that was opened from a JPEG
    "label": "int",
    "caption": "str",
    "many": "str_int",
    "mask": "png",
    "meta": "json",
    "object": "pkl",
    "points": "ndarray",
    "raw": "bytes",
    "score": "float32",
    "vector": "ndarray:float32:3",
}
SPLITS = {"train": None, "val": "zstd:3", "test": "gz"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


images = sorted(pathlib.Path(sys.argv[1]).glob("*.jpg"))
for place, (split, compression) in enumerate(SPLITS.items()):
    out = f"{sys.argv[2]}/mds/{split}"
    with MDSWriter(out=out, columns=COLUMNS, compression=compression, hashes=["sha1"], size_limit=10_000) as writer:
        for number in range(place * len(images) // 3, (place + 1) * len(images) // 3):
            label, caption, many, meta = number % 5, f"größe {number}", 10**30 + number, {"n": number, "ö": [None, "ß"]}
            raw, score, mask = bytes([number, 0, 255]) * (number % 3), number / 4, Image.new("L", (9, 7), number)
            points = np.arange(2 + number % 3, dtype=np.int16)
            sample = {"image": Image.open(images[number]), "label": label, "caption": caption, "many": many}
            sample |= {"mask": mask, "meta": meta, "object": {number}, "points": points, "raw": raw, "score": score}
            writer.write(sample | {"vector": np.ones(3, np.float32)})
            others = {"caption.txt": caption.encode(), "many.txt": str(many).encode(), "mask.png": png(mask)}
            others |= {"meta.json": json.dumps(meta).encode(), "raw.bin": raw, "score.json": json.dumps(score).encode()}
            hashes = {name: sha256(value) for name, value in others.items()}
            print(json.dumps([None, sha256(images[number].read_bytes()), label, hashes]))
