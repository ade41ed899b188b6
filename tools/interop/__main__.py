"""`make interop`: run every peer, compare record by record, write the table in docs/format.md; run the pages of
docs/coming-from/ with the packages that they are about. Status 1 if a peer differs or a page fails.

`python -m tools.interop WORD…` runs only the peers and pages with one of these words in their names, and keeps the
other rows.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tools.environments import ROOT, Missing
from tools.interop import pages, record_sets
from tools.interop.environments import ENVIRONMENTS, FOLDER

PEERS = Path(__file__).parent / "peers"
DOCUMENT = ROOT / "docs" / "format.md"
BEGIN, END = "<!-- interop: written by `make interop` -->\n", "<!-- end of interop -->"
HEADER = "| program | version | what it did | result |\n|---|---|---|---|\n"
TIMEOUT = 400  # seconds for one peer: Hugging Face and TensorFlow take half a minute to start


class Peer(NamedTuple):
    """One program, as a row of the table; the `*` of a container stands for what the program adds to names."""

    name: str
    package: str
    environment: str
    program: str  # in readers.py or writers.py
    container: str  # a reader's, of `record_sets.build`; what iofast opens of a writer's
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


def main(words: list[str]) -> int:
    peers = [peer for peer in (*READERS, *WRITERS) if not words or any(word in peer.name.lower() for word in words)]
    work = FOLDER / "data"
    expected = record_sets.build(work)
    images = work / "images"
    images.mkdir()
    for number in range(record_sets.COUNT):
        (images / f"{number:05d}.jpg").write_bytes(record_sets.image(number, "jpeg"))
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


def attempt(peer: Peer, work: Path, expected: dict[str, list[record_sets.Seen]]) -> tuple[str, str, bool]:
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
            found = record_sets.read(folder / peer.container)
    except (subprocess.SubprocessError, ValueError, OSError) as error:
        return version, f"FAILED: {' '.join(str(error).split())[-300:]}", True
    return version, *compare(wanted, found)


def run(peer: Peer, source: Path, target: Path) -> list[record_sets.Seen]:
    """The records that a peer prints."""
    target.mkdir(exist_ok=True)
    script = PEERS / ("readers.py" if peer in READERS else "writers.py")
    command = [ENVIRONMENTS[peer.environment].python(), script, peer.program, source, target]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    if ended.returncode:
        raise ValueError(f"status {ended.returncode}: {ended.stderr[-600:]}")
    return [record_sets.Seen(*json.loads(line)) for line in ended.stdout.splitlines() if line.startswith("[")]


def compare(wanted: list[record_sets.Seen], found: list[record_sets.Seen]) -> tuple[str, bool]:
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
