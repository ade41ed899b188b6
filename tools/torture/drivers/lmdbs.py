"""LMDB files of other programs: plain images by key."""

import random
from pathlib import Path

import foreign_lmdbs

from tools.torture.drivers import Driver, damage
from tools.torture.drivers.pages import changed
from tools.torture.drivers.reading import look_at


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
