"""Sound containers of ours as bytes, with their records and the places of manifest and index."""

import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import container_sets
import lmdb
import lmdb_containers

from iofast import open_reader, open_writer
from iofast.containers.lmdb import index_key
from iofast.containers.lmdb_pages import Tree, read_meta
from iofast.containers.lmdb_writer import MANIFEST_KEY
from iofast.record import Record

SUFFIXES = container_sets.SUFFIXES


@dataclass(frozen=True)
class Seed:
    """A container: name, files, records in dense order, places (file, offset, length) of manifest and index."""

    name: str
    files: dict[str, bytes]
    records: list[Record]
    manifest: tuple[str, int, int]
    index: tuple[str, int, int]

    def right(self, index: int, field: str, payload: bytes | None) -> bool:
        """Whether this is what was written."""
        return index < len(self.records) and self.records[index].fields.get(field) == payload

    def part(self, place: tuple[str, int, int]) -> bytes:
        """The bytes of a place."""
        name, start, length = place
        return self.files[name][start : start + length]

    def with_part(self, place: tuple[str, int, int], data: bytes) -> dict[str, bytes]:
        """The files with other bytes there."""
        name, start, length = place
        own = self.files[name]
        return {**self.files, name: own[:start] + data + own[start + length :]}


@functools.cache
def sound() -> tuple[Seed, ...]:
    """Two shapes of every container: of several shards and splits, and with raw pixels."""
    with tempfile.TemporaryDirectory() as folder:
        return tuple(_make(Path(folder)))


def _make(folder: Path) -> list[Seed]:
    seeds = []
    for suffix in SUFFIXES:
        for kind in ("many", "raw"):
            own = folder / f"{kind}{suffix}"
            own.mkdir(parents=True)
            path = own / f"{kind}{suffix}"
            if kind == "many":
                container_sets.build(path, 18, shard_size=15_000)
            else:
                raw(path)
            seeds.append(seed(path))
    return seeds


def raw(path: Path) -> Path:
    """A container with `rgb` beside a JPEG and records without an image."""
    with open_writer(path, classes=("a", "b")) as writer:
        for number in range(3):
            size = {"width": 5, "height": 3 + number, "path": f"{number}.png"}
            writer.write({"rgb": bytes(range(15 * (3 + number))), "cls": number % 2, "json": size})
            writer.write({"jpg": container_sets.picture(number), "boxes.json": [[1, 2, 3, 4]]})
            writer.write({"txt": "", "cls": 1})
    return path


def seed(path: Path) -> Seed:
    """The container at `path`, alone in its folder."""
    files = {each.name: each.read_bytes() for each in path.parent.iterdir() if each.is_file()}
    if path.suffix == ".lmdb":
        tree = Tree(files[path.name], read_meta(files[path.name], path.name), path.name)
        places = [(path.name, *(tree.find(key) or (0, 0))) for key in (MANIFEST_KEY, index_key(0))]
    else:
        names = [f"{path.name}.manifest", f"{path.name}.index"]
        places = [(name, 0, len(files[name])) for name in names]
    with open_reader(path) as reader:
        records = list(reader)
    return Seed(path.name, files, records, places[0], places[1])


def tall(folder: Path) -> list[Seed]:
    """LMDB files whose tree has branches: as they were written, and written to by another program since."""
    folder.mkdir(parents=True)
    made = []
    for kind in ("tall", "moved"):
        path = folder / kind / f"{kind}.lmdb"
        path.parent.mkdir()
        with open_writer(path) as writer:
            for number in range(50):
                fields = {"bin": bytes([number]) * (number * 97 % 3000), "json": json.dumps({"path": f"{number}"})}
                writer.write(fields if number % 9 else {**fields, "jpg": container_sets.picture(number)})
        if kind == "moved":
            with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 24) as environment:
                lmdb_containers.put_another(path, environment)
        made.append(seed(path))
    return made
