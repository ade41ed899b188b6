"""The data of the peers: one set of records in every container, and PNGs for peers that give pixels only."""

import hashlib
import io
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from iofast import open_reader, open_writer
from iofast.record import LABEL_FIELD, image_field

COUNT = 60
CLASSES = ["even", "odd", "third"]
SHARD = 60_000  # bytes: four shards or so


class Seen(NamedTuple):
    """One record as a peer sees it; unknown values are None."""

    key: str | None
    sha256: str
    label: int
    others: dict[str, str] | None = None  # the fields beside image and label, as iofast calls them, by their SHA-256


def identity(data: bytes) -> str:
    """The SHA-256 of a payload."""
    return hashlib.sha256(data).hexdigest()


def build(folder: Path) -> dict[str, list[Seen]]:
    """Write `train.tar`, `train.tfrecord`, `train.lmdb` and `png/train.tar`; return what a peer must see in each."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "png").mkdir(parents=True)
    images, labels = [image(number, "jpeg") for number in range(COUNT)], [label_of(number) for number in range(COUNT)]
    expected = {}
    for name, size in (("train.tar", SHARD), ("train.tfrecord", SHARD), ("train.lmdb", None)):
        with open_writer(folder / name, classes=CLASSES, shard_size=size) as writer:
            for number, jpg in enumerate(images):
                writer.write({"jpg": jpg, "cls": labels[number], "json": {"path": f"images/{number}.jpg"}})
        expected[name] = [Seen(f"{number:08d}", identity(jpg), labels[number]) for number, jpg in enumerate(images)]
    with open_writer(folder / "png" / "train.tar", classes=CLASSES, shard_size=SHARD) as writer:
        for number in range(COUNT):
            writer.write({"png": image(number, "png"), "cls": labels[number]})
    expected["png/train.tar"] = [Seen(None, identity(pixels(i).tobytes()), labels[i]) for i in range(COUNT)]
    return expected


def read(path: Path) -> list[Seen]:
    """What iofast sees in a container that a peer wrote."""
    with open_reader(path) as reader:
        located = reader.columns(np.arange(len(reader)))
        payloads = reader.values(np.arange(len(reader)))
        image = image_field(reader.manifest.fields)
        others = [
            {name: identity(value) for name, value in record.fields.items() if name not in (image, LABEL_FIELD)}
            for record in reader
        ]
        rows = zip(reader.keys(located), payloads, located.label.tolist(), others, strict=True)
        return [Seen(key, identity(payload or b""), label, fields) for key, payload, label, fields in rows]


def label_of(number: int) -> int:
    return 2 if number % 3 == 2 else number % 2


def pixels(number: int) -> np.ndarray:
    """(height, width, 3), uint8: another picture and size for each number."""
    rows, columns = np.mgrid[: 40 + number % 7, : 56 + number % 5]
    return np.stack((rows * 4 + number, columns * 3, rows * columns // 9 + number * 3), 2).astype(np.uint8)


def image(number: int, kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels(number)).save(out, kind)
    return out.getvalue()
