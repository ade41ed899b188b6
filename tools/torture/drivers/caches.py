"""Damaged index files in the user's cache folder."""

import os
import random
from pathlib import Path

import arrow_tables
import container_sets
import foreign_lmdbs
import tar_sets
import tfrecord_messages

from iofast import open_reader, owned
from tools.torture.drivers import Driver, damage
from tools.torture.drivers.reading import WholeRead


class Caches(Driver):
    """The index of every kind of source: a damaged one is built again, so that all is read as before."""

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
        changed = damage.anywhere(chance, data)
        file = self.files[path]
        file.with_suffix(".new").write_bytes(changed)
        file.with_suffix(".new").replace(file)  # the old file may be mapped
        whole = WholeRead(path, chance)
        whole.names |= {file.name, *(each.name for each in self.folder.rglob("*"))}
        ended = whole.run()
        assert ended == "whole", f"a damaged index was believed: {ended}"
        return ended
