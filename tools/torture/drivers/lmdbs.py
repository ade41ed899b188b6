"""LMDB files of ours, whose pages have no checksum but payloads and index do, and of other programs: images by key."""

import contextlib
import random
import struct
from pathlib import Path

import foreign_lmdbs

from iofast import open_reader
from iofast.errors import IofastError
from iofast.foreign.lmdb import ForeignLmdbReader
from tools.torture.drivers import Driver, damage
from tools.torture.drivers.own import sound, tall
from tools.torture.drivers.reading import WholeRead, install, look_at

PAGE = 4096
_META = (("<I", 16), ("<I", 20), ("<I", 40), ("<H", 44), ("<H", 92), ("<H", 94), ("<Q", 120), ("<Q", 128), ("<Q", 136))
_META += (("<Q", 144), ("<H", 10))


class Pages(Driver):
    """Headers, node tables, keys and places in branch, leaf, overflow and meta pages."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = [*tall(folder / "tall"), *(s for s in sound() if s.name.endswith("db"))]

    def step(self, chance: random.Random) -> str:
        seed = chance.choice(self.seeds)
        folder = self.folder / "look"
        install(folder, {seed.name: changed(chance, seed.files[seed.name])})
        return WholeRead(folder / seed.name, chance, None if hidden(folder / seed.name) else seed.right).run()


def hidden(path: Path) -> bool:
    """Whether damaged pages hide our manifest: the file is then read as another program's, without checksums."""
    with contextlib.suppress(IofastError), open_reader(path) as reader:
        return isinstance(reader, ForeignLmdbReader)
    return False


def changed(chance: random.Random, data: bytes) -> bytes:
    """An LMDB file with one to three places in its pages changed."""
    if chance.random() < 0.1:
        return damage.anywhere(chance, data)
    damaged, pages = bytearray(data), len(data) // PAGE
    for _ in range(chance.randint(1, 3)):
        kind, page = chance.random(), chance.randrange(pages)
        if kind < 0.25:  # meta pages, mostly both: else the other one would be used
            layout, at = chance.choice(_META)
            value = damage.number(chance, struct.calcsize(layout), pages, PAGE)
            for each in chance.choice(((0, 1), (0, 1), (0,), (1,))):
                damage.put(damaged, layout, each * PAGE + at, value)
        elif kind < 0.35 and pages > 3:  # a page in another one's place
            other = chance.randrange(2, pages)
            damaged[page * PAGE : page * PAGE + PAGE] = damaged[other * PAGE : other * PAGE + PAGE]
            if chance.random() < 0.7:
                damage.put(damaged, "<Q", page * PAGE, page)
        else:
            inside(chance, damaged, page, pages)
    return bytes(damaged)


def inside(chance: random.Random, data: bytearray, page: int, pages: int) -> None:
    """Change the header, the node table or a node of a page."""
    start = page * PAGE
    _, _, flags, lower, upper = struct.unpack_from("<QHHHH", data, start)
    nodes = list(range(16, min(lower, PAGE - 1), 2)) if flags & 3 else []
    near = (pages, page, lower, upper, PAGE)
    if not nodes or chance.random() < 0.3:
        layout, at = chance.choice((("<Q", 0), ("<H", 10), ("<H", 12), ("<H", 14), ("<I", 12)))
        return damage.put(data, layout, start + at, damage.number(chance, 8, *near))
    slot = start + chance.choice(nodes)
    if chance.random() < 0.3:
        return damage.put(data, "<H", slot, damage.number(chance, 2, *near))
    node = start + int.from_bytes(data[slot : slot + 2], "little")
    layout, at = chance.choice((("<H", 0), ("<H", 2), ("<H", 4), ("<H", 6), ("<B", 8), ("<Q", 16), ("<Q", 24)))
    if at == 16 and node + 8 <= len(data):  # behind the key: the page number of a large value
        at = 8 + int.from_bytes(data[node + 6 : node + 8], "little")
    return damage.put(data, layout, node + at, damage.number(chance, struct.calcsize(layout), *near))


class Lmdbs(Driver):
    """Damage in pages, and in the values that they hold."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        pictures = [foreign_lmdbs.picture(n, kind) for n, kind in ((1, "jpeg"), (2, "png"), (3, "gif"))]
        pictures.append(foreign_lmdbs.picture(4, "bmp", (60, 50)))  # beyond a page
        self.values = [*pictures, b"", b"\x80\x03K\x01.", b"text"]
        few = {b"k%d" % n: value for n, value in enumerate(self.values)}
        many = {b"%05d" % n: self.values[n % len(self.values)][:600] for n in range(300)}
        self.files = [
            foreign_lmdbs.write(folder / f"{name}.mdb", own).read_bytes()
            for name, own in (("few", few), ("many", many))
        ]

    def step(self, chance: random.Random) -> str:
        data = chance.choice(self.files)
        if chance.random() < 0.4:  # in a value, where an image begins
            value = chance.choice([own for own in self.values if own and own in data])
            damaged = damage.anywhere(chance, value)[: len(value)].ljust(len(value), b"\0")
            data = data.replace(value, damaged, 1)
        else:
            data = changed(chance, data)
        return look_at(self.folder / "look", {"x.mdb": data}, "x.mdb", chance)
