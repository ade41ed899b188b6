"""Manifest and binary index of our own containers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import google_crc32c
from index_chunks import encoded, sections_of
from numpy.typing import NDArray

from iofast.containers import index
from tools.torture.drivers import Driver, damage, seeds
from tools.torture.drivers.reading import look_at

_HEAD = (("<H", 8), ("<H", 10), ("<I", 12), ("<Q", 16), ("<Q", 24), ("<Q", 32), ("<Q", 40), ("<H", 48), ("<H", 50))
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
        """The chunk with other rows, other sections, or another head; of the same length in LMDB."""
        fields, before = json.loads(seed.part(seed.manifest))["fields"], seed.part(seed.index)
        head, sections = sections_of(before, len(fields))
        images = sections[index.IMAGES]
        near = [int(each) & index.NOWHERE for each in images["place"]] + [int(images["length"].max())]
        for _ in range(chance.randint(1, 3)):
            self.change(chance, sections[chance.choice((index.IMAGES, *sections))], *near)
        if not seed.name.endswith(".lmdb") and chance.random() < 0.1:
            del sections[chance.choice([*sections])]
        data = bytearray(encoded(head, sections))
        if chance.random() < 0.2:
            layout, at = chance.choice(_HEAD)
            damage.put(data, layout, at, damage.number(chance, 8, head.rows, len(fields)))
            end = 48 + 2 * len(sections)
            damage.put(data, "<I", end, google_crc32c.value(bytes(data[:end])))
        return bytes(data)

    def change(self, chance: random.Random, rows: NDArray[Any], *near: int) -> None:
        """Change a number of a row; of an image's place, all of it or some bits above the offset."""
        name = chance.choice(rows.dtype.names) if rows.dtype.names else None
        column = rows if name is None else rows[name]
        row, size = chance.randrange(len(rows)), column.dtype.itemsize
        value = damage.number(chance, size, *near)
        if name == "place" and chance.random() < 0.7:
            upper = chance.getrandbits(16) if chance.random() < 0.5 else int(column[row]) >> 48
            value = value & index.NOWHERE | upper << 48
        column.view(f"u{size}")[row] = value

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
