"""MosaicML's MDS, FFCV's beton, and tables of Hugging Face."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import struct
from pathlib import Path
from typing import Any

import arrow_tables
import container_sets
import foreign_sets

from tools.torture.drivers import Driver, damage
from tools.torture.drivers.reading import look_at

_COLUMNS = {"image": "jpeg", "label": "int", "score": "float32", "text": "str", "meta": "json", "blob": "bytes"}
_COLUMNS |= {"old": "pkl"}
_FIELDS = {"image": "rgb", "label": "int", "score": "float", "meta": "json", "blob": "bytes", "array": "ndarray"}


def values(number: int) -> dict[str, Any]:
    """The columns of one sample."""
    image = container_sets.picture(number)
    own = {"image": image, "label": number % 3, "score": number / 3, "text": f"number {number}", "meta": {"n": number}}
    return {**own, "blob": bytes(number), "old": b"\x80\x03K\x01.", "array": b"12345678"}


class Mds(Driver):
    """`index.json` and shards, packed and not."""

    MEMORY = 48  # MiB; a shard that declares an unpacked size below the limit of 1 GiB takes memory

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sets: list[dict[str, bytes]] = []
        for name, pack in ((None, bytes), ("gz", gzip.compress), ("bz2:9", bz2.compress)):
            columns = _COLUMNS if name != "bz2:9" else {"label": "int", "y": "uint8"}
            samples = [values(number) | {"y": number} for number in range(7)]
            made = foreign_sets.write_mds(folder / f"{name}", columns, samples, compression=name, pack=pack)
            self.sets.append({each.name: each.read_bytes() for each in made.iterdir()})

    def step(self, chance: random.Random) -> str:
        files = dict(chance.choice(self.sets))
        index = json.loads(files["index.json"])
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            index = damage.value(chance, index)
        files["index.json"] = damage.text(chance, index, chance.choice((None, "\t")))
        if chance.random() < 0.05:
            files["index.json"] = damage.anywhere(chance, files["index.json"])
        for name in damage.some(chance, [each for each in files if each != "index.json"], 1):
            files[name] = shard(chance, files[name])
        return look_at(self.folder / "look", files, "", chance)


def shard(chance: random.Random, data: bytes) -> bytes:
    """A shard with another header."""
    kind, changed = chance.random(), bytearray(data)
    if kind < 0.4:
        return data
    if kind < 0.6:
        return damage.anywhere(chance, data)
    for _ in range(chance.randint(1, 2)):
        count = int.from_bytes(data[:4], "little")
        bounds = struct.unpack_from("<5I", data, 4)
        at = 4 * chance.randrange(6) if chance.random() < 0.6 else bounds[0] + 4 * chance.randrange(6)
        damage.put(changed, "<I", at, damage.number(chance, 4, count, len(data), *bounds))
    return bytes(changed)


class Beton(Driver):
    """Header, field descriptions, rows and the allocation table."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        samples = [values(number) for number in range(6)]
        for sample in samples:
            sample["image"] = (48, 40, sample["image"])
        shapes = ({**_FIELDS}, {"label": "int", "score": "float"}, {"image": "rgb"})
        self.files = []
        for number, fields in enumerate(shapes):
            path = foreign_sets.write_beton(folder / f"{number}.beton", fields, samples[: 6 * (number < 2) or 1])
            self.files.append((path.read_bytes(), len(fields)))

    def step(self, chance: random.Random) -> str:
        data, fields = chance.choice(self.files)
        changed = bytearray(data)
        table, rows = int.from_bytes(data[16:24], "little"), 24 + 1041 * fields
        for _ in range(chance.randint(1, 3)):
            at = chance.choice((0, 2, 4, 8, 16, rows + chance.randrange(400), table + 8 * chance.randrange(40)))
            if chance.random() < 0.15:
                at = 24 + 1041 * chance.randrange(fields) + chance.randrange(3)
            size = chance.choice((1, 2, 4, 8))
            damage.put(changed, damage.LAYOUTS[size], at, damage.number(chance, size, len(data), table, rows, 4096))
        written = damage.anywhere(chance, bytes(changed)) if chance.random() < 0.1 else bytes(changed)
        return look_at(self.folder / "look", {"x.beton": written}, "x.beton", chance)


class Arrow(Driver):
    """Arrow files (streams, and with an index at their end), Parquet files, and folders of `save_to_disk`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rows = arrow_tables.table(arrow_tables.columns(6))
        arrow_tables.write_arrow(folder / "stream.arrow", rows)
        arrow_tables.write_arrow(folder / "file.arrow", rows, is_file=True)
        arrow_tables.write_parquet(folder / "table.parquet", rows)
        arrow_tables.write_parquet(folder / "plain.parquet", rows, compression="none", use_dictionary=False)
        saved = arrow_tables.save_to_disk(folder / "saved", rows)
        self.sets = [{path.name: path.read_bytes()} for path in sorted(folder.iterdir()) if path.is_file()]
        self.sets.append({path.name: path.read_bytes() for path in saved.iterdir()})

    def step(self, chance: random.Random) -> str:
        files = dict(chance.choice(self.sets))
        single = next(iter(files)) if len(files) == 1 else ""
        if "state.json" in files:
            state = damage.value(chance, json.loads(files["state.json"])) if chance.random() < 0.5 else None
            files["state.json"] = damage.text(chance, state) if state is not None else files["state.json"]
        for name in damage.some(chance, [each for each in files if each != "state.json"], 1):
            files[name] = damage.anywhere(chance, files[name])
        return look_at(self.folder / "look", files, single, chance)
