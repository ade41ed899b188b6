"""FFCV's DatasetWriter in jpg mode: a .beton of several pages, and what it put there.

It takes pixels and makes the JPEGs itself, so what iofast reads is compared with what FFCV's own encoder gives. Arrays
are among the fields, which iofast leaves out.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys

import numpy as np
from ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField
from ffcv.fields.rgb_image import encode_jpeg
from ffcv.writer import DatasetWriter
from PIL import Image

QUALITY = 90
FIELDS = {
    "raw": BytesField(),  # before the image: an empty one begins where the image does
    "image": RGBImageField(write_mode="jpg", jpeg_quality=QUALITY),
    "label": IntField(),
    "vector": NDArrayField(np.dtype("float32"), (3,)),
    "score": FloatField(),
    "meta": JSONField(),
}
PAGE = 1 << 21  # bytes, the least that it takes: the values below fill several


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


samples = []
for number, path in enumerate(sorted(pathlib.Path(sys.argv[1]).glob("*.jpg"))):
    raw = np.full(number % 3 * 100_003, number, np.uint8)
    pixels = np.asarray(Image.open(path).convert("RGB"))
    samples.append((raw, pixels, number % 5, np.ones(3, np.float32), number / 4, {"n": number, "ö": [None, "ß"]}))
writer = DatasetWriter(f"{sys.argv[2]}/train.beton", FIELDS, page_size=PAGE, num_workers=2)
writer.from_indexed_dataset(samples, chunksize=7)
for raw, pixels, label, _, score, meta in samples:
    others = {"score.json": json.dumps(score).encode(), "meta.json": json.dumps(meta).encode()}
    hashes = {name: sha256(value) for name, value in others.items()} | {"raw.bin": sha256(raw.tobytes())}
    print(json.dumps([None, sha256(encode_jpeg(pixels, QUALITY).tobytes()), label, hashes]))
