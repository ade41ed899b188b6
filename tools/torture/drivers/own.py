"""Manifest and binary index of our own containers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import google_crc32c
import numpy as np

from iofast.containers.index import BLOCK_ROWS, HEADER_SIZE, row_dtype
from tools.torture.drivers import Driver, damage, seeds
from tools.torture.drivers.reading import look_at

_HEADER = (("<H", 8), ("<H", 10), ("<I", 12), ("<Q", 16), ("<I", 24), ("<H", 28), ("<H", 30), ("<Q", 32), ("<Q", 40))
_HEADER += (("<Q", 48), ("<I", 56))
_FILE = (("<H", 8), ("<H", 10), ("<I", 12), ("<Q", 16), ("<I", 24))


class Own(Driver):
    """What both drivers share: sound containers, and damage anywhere, after which nothing wrong may be read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = seeds.sound()

    def blind(self, chance: random.Random, seed: seeds.Seed) -> str:
        """Damage to any file."""
        name = chance.choice(sorted(seed.files))
        files = {**seed.files, name: damage.anywhere(chance, seed.files[name])}
        return self.look(chance, seed, files, sound=True)

    def look(self, chance: random.Random, seed: seeds.Seed, files: dict[str, bytes], *, sound: bool) -> str:
        """Read these files; `sound`: checksums cover all that is read."""
        return look_at(self.folder / "look", files, seed.name, chance, seed.right if sound else None)


class Manifests(Own):
    """JSON with other values and a right checksum."""

    def step(self, chance: random.Random) -> str:
        seed = chance.choice(self.seeds)
        if chance.random() < 0.1:
            return self.blind(chance, seed)
        before = seed.part(seed.manifest)
        said = json.loads(before)
        for _ in range(chance.randint(1, 2)):
            said = damage.value(chance, said)
        text = damage.text(chance, said)
        if chance.random() < 0.1:
            text = damage.anywhere(chance, text)
        sealed = chance.random() < 0.95
        text = damage.resealed(text) if sealed else text
        if seed.name.endswith(".lmdb"):
            text = text.ljust(len(before))[: len(before)]  # longer JSON is cut off, which makes it invalid
        return self.look(chance, seed, seed.with_part(seed.manifest, text), sound=not sealed)


class Indexes(Own):
    """Rows, headers and directory with other values and right checksums."""

    def step(self, chance: random.Random) -> str:
        seed = chance.choice(self.seeds)
        if chance.random() < 0.2:
            return self.blind(chance, seed)
        chunk = self.chunk(chance, seed)
        files = seed.with_part(seed.index, chunk)
        name = seed.index[0]
        if not seed.name.endswith(".lmdb") and chance.random() < 0.2:
            files[name] = self.directory(chance, files[name])
        return self.look(chance, seed, files, sound=False)

    def chunk(self, chance: random.Random, seed: seeds.Seed) -> bytes:
        """The chunk with other rows, or another header."""
        fields = json.loads(seed.part(seed.manifest))["fields"]
        groups = (*fields, "") if seed.name.endswith(".tfrecord") else fields
        data, dtype = bytearray(seed.part(seed.index)), row_dtype(groups)
        count = len(seed.records)
        blocks = -(-count // BLOCK_ROWS)
        start = HEADER_SIZE + 4 * blocks
        rows = np.frombuffer(data, dtype, count, start)
        near = [int(each) for each in rows["place"]["offset"].flat] + [int(rows["place"]["length"].max())]
        for _ in range(chance.randint(1, 3)):
            name = chance.choice(("position", "label", "width", "height", "orientation", "flags", *["place"] * 6))
            row = rows[chance.randrange(count)]
            if name == "place":
                own = chance.choice(("file", "offset", "length", "crc"))
                size = row["place"].dtype[own].itemsize
                row["place"][own][chance.randrange(len(groups))] = damage.number(chance, size, *near, len(seed.files))
            else:
                kind = dtype[name]
                row[name] = np.array(damage.number(chance, kind.itemsize, count), f"u{kind.itemsize}").view(
                    f"{kind.kind}{kind.itemsize}"
                )
        if chance.random() < 0.2:
            layout, at = chance.choice(_HEADER)
            damage.put(data, layout, at, damage.number(chance, 8, count, dtype.itemsize))
        step = BLOCK_ROWS * dtype.itemsize
        for block in range(blocks):
            own = bytes(data[start + block * step : start + (block + 1) * step])
            damage.put(data, "<I", HEADER_SIZE + 4 * block, google_crc32c.value(own))
        damage.put(data, "<I", 60, google_crc32c.value(bytes(data[:60] + data[HEADER_SIZE:start])))
        return bytes(data)

    def directory(self, chance: random.Random, data: bytes) -> bytes:
        """The index file with another header or directory."""
        changed = bytearray(data)
        end = int.from_bytes(data[16:24], "little")
        if chance.random() < 0.5:
            layout, at = chance.choice(_FILE)
            damage.put(changed, layout, at, damage.number(chance, 8, len(data), end))
            damage.put(changed, "<I", 28, google_crc32c.value(bytes(changed[:28])))
        else:
            damage.put(changed, "<Q", end + chance.choice((0, 8)), damage.number(chance, 8, len(data), end, 64))
            damage.put(changed, "<I", len(data) - 4, google_crc32c.value(bytes(changed[end : len(data) - 4])))
        return bytes(changed)
