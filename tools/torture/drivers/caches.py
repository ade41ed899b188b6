"""Index files in the user's cache folder, with other contents and right checksums."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import arrow_tables
import container_sets
import foreign_lmdbs
import numpy as np
import tar_sets
import tfrecord_messages

from iofast import open_reader, owned
from iofast.kernel import crc32c
from iofast.source import cache
from tools.torture.drivers import Driver, damage
from tools.torture.drivers.reading import WholeRead

_HEAD = len(cache.MAGIC)


class Caches(Driver):
    """Members and columns of the index of every kind of source; an unusable index is built again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        picture = container_sets.picture
        tar_sets.foreign(
            folder / "x.tar", [(f"{n}.{e}", b) for n in range(5) for e, b in (("jpg", picture(n)), ("cls", b"1"))]
        )
        tfrecord_messages.write(folder / "x.tfrecord", [{"image": picture(n)} for n in range(4)])
        foreign_lmdbs.write(folder / "x.mdb", {b"k%d" % n: picture(n) for n in range(4)})
        arrow_tables.write_arrow(folder / "x.arrow", arrow_tables.table(arrow_tables.columns(6)))
        (folder / "images").mkdir()
        for number in range(4):
            (folder / "images" / f"{number}.jpg").write_bytes(picture(number))
        lines = [f"\nimages/{n}.jpg,{n % 2},{'val' if n == 1 else 'train'},n" for n in range(4)]
        (folder / "x.csv").write_text("path,label,split,note" + "".join(lines))
        self.paths = [folder / name for name in ("x.tar", "x.tfrecord", "x.mdb", "x.arrow", "x.csv", "images")]
        for path in (*folder.rglob("*"), folder / "images"):
            os.utime(path, ns=(10**18, 10**18))  # a recent change would keep the index from being used
        self.files: dict[Path, Path] = {}
        self.sound: dict[Path, bytes] = {}
        for path in self.paths:
            known = set(self.index_files())
            open_reader(path).close()
            (self.files[path],) = set(self.index_files()) - known
            self.sound[path] = self.files[path].read_bytes()

    def index_files(self) -> list[Path]:
        """All index files of the cache."""
        return sorted((owned.cache_folder() or Path()).glob("*.index"))

    def step(self, chance: random.Random) -> str:
        path = chance.choice(self.paths)
        data = self.sound[path]
        blind = chance.random() < 0.2
        changed = damage.anywhere(chance, data) if blind else other_contents(chance, data)
        file = self.files[path]
        file.with_suffix(".new").write_bytes(changed)
        file.with_suffix(".new").replace(file)  # the old file may be mapped
        whole = WholeRead(path, chance)
        whole.names |= {file.name, *(each.name for each in self.folder.rglob("*"))}
        if path.suffix in ("", ".csv"):
            whole.names.add("cannot read /")  # this index holds paths and may name any file
        ended = whole.run()
        assert not blind or ended == "whole", f"a damaged index was believed: {ended}"
        return ended


def other_contents(chance: random.Random, data: bytes) -> bytes:
    """An index with other members, array places or values; all checksums are right."""
    length = int.from_bytes(data[_HEAD : _HEAD + 8], "little")
    start = _HEAD + 8
    members = json.loads(data[start : start + length])
    body = bytearray(data)
    places = members["arrays"]
    for _ in range(chance.randint(1, 3)):
        kind, count, offset, _ = (str(each) for each in places[chance.choice(sorted(places))])
        if int(count):
            dtype = np.dtype(kind)
            near = [len(data), int(count), *np.frombuffer(data, dtype, int(count), int(offset)).tolist()[:4]]
            at = int(offset) + dtype.itemsize * chance.randrange(int(count))
            damage.put(body, damage.LAYOUTS[dtype.itemsize], at, damage.number(chance, dtype.itemsize, *near))
    for place in places.values():
        size = np.dtype(place[0]).itemsize * int(place[1])
        place[3] = f"{crc32c(bytes(body[int(place[2]) : int(place[2]) + size])) if size else 0:08x}"
    changed = members
    if chance.random() < 0.4:
        name = chance.choice([each for each in members if each != "crc32c"])
        changed = {**members, name: damage.value(chance, members[name])}
    text = damage.resealed(damage.text(chance, changed))
    if len(text) > length:  # the arrays follow
        text = damage.resealed(json.dumps(members, sort_keys=True, separators=(",", ":")).encode())
    return bytes(body[:start]) + text.ljust(length) + bytes(body[start + length :])
