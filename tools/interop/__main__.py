"""`make interop`: run every peer, compare record by record, write the table in docs/format.md. Status 1 if one differs.

`python -m tools.interop NAME…` runs only the peers whose names hold one of these words, and leaves the other rows.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tools.interop import data, environments

PEERS = Path(__file__).parent / "peers"
DOCUMENT = environments.ROOT / "docs" / "format.md"
BEGIN, END = "<!-- interop: written by `make interop` -->\n", "<!-- end of interop -->"
HEADER = "| program | version | what it did | result |\n|---|---|---|---|\n"
TIMEOUT = 400  # seconds for one peer: Hugging Face and TensorFlow take half a minute to start


class Peer(NamedTuple):
    """One program: what the table calls it, where its version stands, and what it is given or leaves."""

    name: str
    package: str
    environment: str
    program: str
    container: str  # of `data.build` for one that reads; what to open for one that writes
    does: str


READERS = (
    Peer("py-lmdb", "lmdb", "torch", "read_lmdb", "train.lmdb", "reads LMDB in five lines"),
    Peer("webdataset", "webdataset", "torch", "read_webdataset", "train.tar", "reads tar shards"),
    Peer("wids", "wids", "wids", "read_wids", "train.tar", "reads tar shards by the `wids` sidecar"),
    Peer("HF datasets", "datasets", "torch", "read_datasets", "train.tar", 'reads tar shards (`"webdataset"`)'),
    Peer("timm", "timm", "torch", "read_timm", "png/train.tar", "reads tar shards of PNGs by the `timm` sidecar"),
    Peer(
        "Megatron-Energon", "megatron-energon", "energon", "read_energon", "train.tar", "`energon prepare`s tar shards"
    ),
    Peer(
        "DALI tar",
        "nvidia-dali-cuda120",
        "dali",
        "read_dali_tar",
        "train.tar",
        "reads tar shards by the `dali` sidecar",
    ),
    Peer(
        "TensorFlow", "tensorflow-cpu", "tensorflow", "read_tensorflow", "train.tfrecord", "reads TFRecords (`tf.data`)"
    ),
    Peer("tfrecord", "tfrecord", "torch", "read_tfrecord", "train.tfrecord", "reads TFRecords by the `dali` sidecar"),
    Peer(
        "DALI TFRecord",
        "nvidia-dali-cuda120",
        "dali",
        "read_dali_tfrecord",
        "train.tfrecord",
        "reads TFRecords by the `dali` sidecar",
    ),
)
WRITERS = (
    Peer(
        "webdataset writer",
        "webdataset",
        "torch",
        "write_webdataset",
        "theirs-*.tar",
        "wrote tar shards that iofast reads",
    ),
    Peer(
        "TensorFlow writer",
        "tensorflow-cpu",
        "tensorflow",
        "write_tensorflow",
        "train-*-of-*",
        "wrote TFRecords that iofast reads",
    ),
    Peer("Caffe-style", "protobuf", "caffe", "write_caffe", "caffe_lmdb", "wrote an LMDB of Datums that iofast reads"),
    Peer("py-lmdb writer", "lmdb", "caffe", "write_lmdb", "plain.lmdb", "wrote an LMDB of JPEGs that iofast reads"),
    Peer(
        "MosaicML Streaming",
        "mosaicml-streaming",
        "mosaicml",
        "write_mosaicml",
        "mds",
        "wrote MDS (plain, zstd, gz; eight columns, three skipped) that iofast reads",
    ),
    Peer(
        "FFCV",
        "ffcv",
        "ffcv",
        "write_ffcv",
        "train.beton",
        "wrote a `.beton` (JPEGs that it made of pixels; five fields, one skipped) that iofast reads",
    ),
)


def main(words: list[str]) -> int:
    peers = [peer for peer in (*READERS, *WRITERS) if not words or any(word in peer.name.lower() for word in words)]
    work = environments.FOLDER / "data"
    expected = data.build(work)
    images = work / "images"
    images.mkdir()
    for number in range(data.COUNT):
        (images / f"{number:05d}.jpg").write_bytes(data.image(number, "jpeg"))
    rows, failed = table(), 0
    for peer in peers:
        version, result, differs = attempt(peer, work, expected)
        failed += differs
        said = "FAILED" if differs else result  # what went wrong names paths of this machine
        rows[peer.name] = f"| {peer.name} | {version} | {peer.does} | {said} |"
        print(f"{peer.name} {version}: {peer.does}: {result}", flush=True)
    write_table([rows[peer.name] for peer in (*READERS, *WRITERS) if peer.name in rows])
    print(f"{len(peers) - failed} passed, {failed} failed")
    return int(failed > 0)


def attempt(peer: Peer, work: Path, expected: dict[str, list[data.Seen]]) -> tuple[str, str, bool]:
    """Version, result and whether something is wrong."""
    try:
        version = environments.versions(peer.environment).get(peer.package, "?")
    except environments.Missing as missing:
        return pinned(peer), f"not run: {missing}", False
    try:
        if peer in READERS:
            wanted, found = expected[peer.container], run(peer, work, work / "scratch")
        else:
            folder = work / peer.program
            folder.mkdir(exist_ok=True)
            wanted = run(peer, work / "images", folder)
            found = data.read(folder / peer.container)
    except (subprocess.SubprocessError, ValueError, OSError) as error:
        return version, f"FAILED: {' '.join(str(error).split())[-300:]}", True
    return version, *compare(wanted, found)


def run(peer: Peer, source: Path, target: Path) -> list[data.Seen]:
    """The lines that a peer prints."""
    target.mkdir(exist_ok=True)
    command = [environments.python(peer.environment), PEERS / f"{peer.program}.py", source, target]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    if ended.returncode:
        raise ValueError(f"status {ended.returncode}: {ended.stderr[-600:]}")
    return [data.Seen(*json.loads(line)) for line in ended.stdout.splitlines() if line.startswith("[")]


def compare(wanted: list[data.Seen], found: list[data.Seen]) -> tuple[str, bool]:
    """What a row says, and whether something differs. Keys and other fields count where both sides know them."""
    if len(wanted) != len(found):
        return f"DIFFERS: {len(found)} of {len(wanted)} records", True
    for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
        known = [each for each in zip(one, other, strict=True) if None not in each]
        if any(mine != theirs for mine, theirs in known):
            return f"DIFFERS: record {number} is {other}, expected {one}", True
    return f"all {len(wanted)} records alike", False


def pinned(peer: Peer) -> str:
    """The version that was asked for."""
    every = (*environments.REQUIREMENTS[peer.environment], *environments.ALONE.get(peer.environment, ()))
    wanted = [each for each in every if each.startswith(f"{peer.package}==")]
    return wanted[0].partition("==")[2] if wanted else "?"


def table() -> dict[str, str]:
    """The rows that stand in the document, by program."""
    text = DOCUMENT.read_text()
    rows = text[text.index(BEGIN) : text.index(END)].splitlines()[3:]
    return {re.split(r" *\| *", row)[1]: row for row in rows}


def write_table(rows: list[str]) -> None:
    text = DOCUMENT.read_text()
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    made = text[:start] + HEADER + "".join(f"{row}\n" for row in rows) + text[stop:]
    temporary = DOCUMENT.with_suffix(".tmp")
    temporary.write_text(made)
    shutil.move(temporary, DOCUMENT)


if __name__ == "__main__":
    sys.exit(main([word.lower() for word in sys.argv[1:]]))
