"""Of 1,000 files with one random byte changed, each is an error with file and place, or gives the right records.

Containers of all three kinds, in two shapes each, one byte of one file changed; then opened, every payload and label
read and compared with what was written, and the whole verified with all images decoded. A payload that is not right
must be an error that names the file and the record or the offset. What reading finds, `verify` finds.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from iofast import open_reader
from iofast.checking import verify
from iofast.containers.base import Failures, Reader
from iofast.errors import IofastError
from tools.torture import Failed
from tools.torture.drivers import damage, seeds
from tools.torture.drivers.reading import check_message, install

FILES = 1000
_PLACE = re.compile(r"offset \d|page \d|piece \d|record \d|\d{8}")


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            counts = flips(Path(folder), range(FILES))
        except AssertionError as error:
            raise Failed(str(error)) from None
    ends = ("not opened", "payloads refused", "only verify", "right")
    lines = ["| container | files | " + " | ".join(ends) + " |", "|---|---|" + "---|" * len(ends)]
    for kind in ("lmdb", "tar", "tfrecord"):
        own = [counts[kind, end] for end in ends]
        lines.append(f"| {kind} | {sum(own)} | " + " | ".join(map(str, own)) + " |")
    return [
        *lines,
        "",
        "- not opened: a file is damaged where opening looks; payloads refused: some, and all others were right; only "
        "verify: every payload was right, and the damage lies between them; right: it lies where nothing is read, or "
        "says nothing (padding, unused parts of pages)",
        f"- {counts['payloads', 'right']:,} payloads were read and right, {counts['payloads', 'refused']:,} refused",
    ]


def flips(folder: Path, numbers: Iterable[int]) -> Counter[tuple[str, str]]:
    """These files; raises `AssertionError` for what does not hold."""
    made, counts = seeds.sound(), Counter[tuple[str, str]]()
    for number in numbers:
        chance, seed = random.Random(f"flips {number}"), made[number % len(made)]
        sizes = {name: len(data) for name, data in seed.files.items()}
        name = chance.choices(list(sizes), [size + 3000 for size in sizes.values()])[0]  # the small ones more often
        at, data = damage.one_byte(chance, seed.files[name])
        install(folder / "flip", {**seed.files, name: data})
        try:
            ended = read(folder / "flip" / seed.name, seed, counts)
        except AssertionError as error:
            raise AssertionError(f"flip {number}, {name} at offset {at}: {error}") from None
        counts[seed.name.rpartition(".")[2], ended] += 1
    return counts


def read(path: Path, seed: seeds.Seed, counts: Counter[tuple[str, str]]) -> str:
    """Read all of it; how that ended."""
    try:
        reader = open_reader(path)
    except IofastError as error:
        check_message(error, {*seed.files, path.name})
        return "not opened"
    with reader:
        refused = payloads(reader, seed, counts)
    whole = verify(path).whole
    assert not (refused and whole), f"{refused} payloads are refused, but verify finds it whole"
    return "payloads refused" if refused else "right" if whole else "only verify"


def payloads(reader: Reader, seed: seeds.Seed, counts: Counter[tuple[str, str]]) -> int:
    """How many payloads were refused; all others must be those that were written."""
    assert len(reader) == len(seed.records), f"{len(reader)} records of {len(seed.records)}"
    assert list(reader.manifest.fields) == sorted({name for record in seed.records for name in record.fields})
    refused = 0
    for index, record in enumerate(seed.records):
        for field in reader.manifest.fields:
            failed: Failures = {}
            try:
                value = reader.values(np.array([index]), field, failed=failed)[0]
                own = reader.locate(np.array([index]), field)
            except IofastError as error:
                failed[0] = error
            if failed:
                check_message(failed[0], set(seed.files))
                assert _PLACE.search(str(failed[0])), f"no place in: {failed[0]}"
                refused += 1
                continue
            assert value == record.fields.get(field), f"record {index}: wrong {field}: {value!r:.60}"
            label = int(record.fields["cls"]) if "cls" in record.fields else -1
            assert int(own.label[0]) == label, f"record {index}: label {own.label[0]} instead of {label}"
            counts["payloads", "right"] += 1
    counts["payloads", "refused"] += refused
    return refused
