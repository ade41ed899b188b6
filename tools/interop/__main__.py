"""`make interop`: run every peer, compare record by record, write the table in docs/format.md; run the pages of
docs/coming-from/ with the packages that they are about. Status 1 if a peer differs or a page fails.

`python -m tools.interop WORD…` runs only the peers and pages with one of these words in their names, and keeps the
other rows.
"""

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from iofast import open_reader, open_writer
from iofast.record import LABEL_FIELD, image_field
from tools.environments import ROOT, Missing
from tools.interop import pages
from tools.interop.environments import ENVIRONMENTS, FOLDER

PEERS = Path(__file__).parent / "peers"
DOCUMENT = ROOT / "docs" / "format.md"
BEGIN, END = "<!-- interop: written by `make interop` -->\n", "<!-- end of interop -->"
HEADER = "| program | version | what it did | result |\n|---|---|---|---|\n"
COUNT = 60
CLASSES = ["even", "odd", "third"]
SHARD = 60_000  # bytes: four shards or so
TIMEOUT = 400  # seconds for one peer: Hugging Face and TensorFlow take half a minute to start


class Peer(NamedTuple):
    """One program, as a row of the table; the `*` of a container stands for what the program adds to names."""

    name: str
    package: str
    environment: str
    program: str  # in readers.py or writers.py
    container: str  # a reader's, of `build`; what iofast opens of a writer's
    does: str


DALI, TF = "nvidia-dali-cuda120", "tensorflow-cpu"
TAR, RECORDS = "train.tar", "train.tfrecord"
READERS = (
    Peer("py-lmdb", "lmdb", "torch", "lmdb", "train.lmdb", "reads LMDB in five lines"),
    Peer("webdataset", "webdataset", "torch", "webdataset", TAR, "reads tar shards"),
    Peer("wids", "wids", "wids", "wids", TAR, "reads tar shards by the index of `widsindex`"),
    Peer("HF datasets", "datasets", "torch", "datasets", TAR, 'reads tar shards (`"webdataset"`)'),
    Peer("timm", "timm", "torch", "timm", "png/train.tar", "reads tar shards of PNGs"),
    Peer("Megatron-Energon", "megatron-energon", "energon", "energon", TAR, "`energon prepare`s tar shards"),
    Peer("DALI tar", DALI, "dali", "dali_tar", TAR, "reads tar shards"),
    Peer("TensorFlow", TF, "tensorflow", "tensorflow", RECORDS, "reads TFRecords (`tf.data`)"),
    Peer("tfrecord", "tfrecord", "torch", "tfrecord", RECORDS, "reads TFRecords by the index of its `tfrecord2idx`"),
    Peer("DALI TFRecord", DALI, "dali", "dali_tfrecord", RECORDS, "reads TFRecords by the index of `tfrecord2idx`"),
)
SHARDS = "wrote tar shards that iofast reads"
WRITERS = (
    Peer("webdataset writer", "webdataset", "torch", "webdataset", "theirs-*.tar", SHARDS),
    Peer("TensorFlow writer", TF, "tensorflow", "tensorflow", "train-*-of-*", "wrote TFRecords that iofast reads"),
    Peer("py-lmdb writer", "lmdb", "torch", "lmdb", "plain.lmdb", "wrote an LMDB of JPEGs that iofast reads"),
    Peer("HF Parquet", "datasets", "torch", "hub", "hub", "wrote Parquet as on the Hub that iofast reads"),
    Peer("HF Arrow", "datasets", "torch", "saved", "saved", "saved to disk what iofast reads"),
)


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


def seen_in(path: Path) -> list[Seen]:
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


def main(words: list[str]) -> int:
    peers = [peer for peer in (*READERS, *WRITERS) if not words or any(word in peer.name.lower() for word in words)]
    work = FOLDER / "data"
    expected = build(work)
    images = work / "images"
    images.mkdir()
    for number in range(COUNT):
        (images / f"{number:05d}.jpg").write_bytes(image(number, "jpeg"))
    rows, failed = table(), 0
    for peer in peers:
        version, result, differs = attempt(peer, work, expected)
        failed += differs
        shown = "FAILED" if differs else result  # the reason has paths of this machine
        rows[peer.name] = f"| {peer.name} | {version} | {peer.does} | {shown} |"
        print(f"{peer.name} {version}: {peer.does}: {result}", flush=True)
    write_table([rows[peer.name] for peer in (*READERS, *WRITERS) if peer.name in rows])
    read = [name for name in pages.PAGES if not words or any(word in name for word in words)]
    for name in read:
        result, fails = pages.attempt(name)
        failed += fails
        print(f"coming from {name}: {result}", flush=True)
    print(f"{len(peers) + len(read) - failed} passed, {failed} failed")
    return int(failed > 0)


def attempt(peer: Peer, work: Path, expected: dict[str, list[Seen]]) -> tuple[str, str, bool]:
    """Run a peer: its version, the result, and whether it failed."""
    try:
        version = ENVIRONMENTS[peer.environment].versions().get(peer.package, "?")
    except Missing as missing:
        return pinned(peer), f"not run: {missing}", False
    try:
        if peer in READERS:
            wanted, found = expected[peer.container], run(peer, work, work / "scratch")
        else:
            folder = work / peer.program
            wanted = run(peer, work / "images", folder)
            found = seen_in(folder / peer.container)
    except (subprocess.SubprocessError, ValueError, OSError) as error:
        return version, f"FAILED: {' '.join(str(error).split())[-300:]}", True
    return version, *compare(wanted, found)


def run(peer: Peer, source: Path, target: Path) -> list[Seen]:
    """The records that a peer prints."""
    target.mkdir(exist_ok=True)
    script = PEERS / ("readers.py" if peer in READERS else "writers.py")
    command = [ENVIRONMENTS[peer.environment].python(), script, peer.program, source, target]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    if ended.returncode:
        raise ValueError(f"status {ended.returncode}: {ended.stderr[-600:]}")
    return [Seen(*json.loads(line)) for line in ended.stdout.splitlines() if line.startswith("[")]


def compare(wanted: list[Seen], found: list[Seen]) -> tuple[str, bool]:
    """The result for the table, and whether something differs. Keys and other fields count if both sides have them."""
    if len(wanted) != len(found):
        return f"DIFFERS: {len(found)} of {len(wanted)} records", True
    for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
        known = [each for each in zip(one, other, strict=True) if None not in each]
        if any(mine != theirs for mine, theirs in known):
            return f"DIFFERS: record {number} is {other}, expected {one}", True
    return f"all {len(wanted)} records alike", False


def pinned(peer: Peer) -> str:
    """The pinned version."""
    return ENVIRONMENTS[peer.environment].pinned(peer.package) or "?"


def table() -> dict[str, str]:
    """The rows of the document, by program."""
    text = DOCUMENT.read_text()
    rows = text[text.index(BEGIN) : text.index(END)].splitlines()[3:]
    return {re.split(r" *\| *", row)[1]: row for row in rows}


def write_table(rows: list[str]) -> None:
    text = DOCUMENT.read_text()
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOCUMENT.write_text(text[:start] + HEADER + "".join(f"{row}\n" for row in rows) + text[stop:])


if __name__ == "__main__":
    sys.exit(main([word.lower() for word in sys.argv[1:]]))
