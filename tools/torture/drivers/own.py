"""Our own containers, sound and as bytes; their manifests and indexes, damaged."""

import functools
import json
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import container_sets
import lmdb
import lmdb_containers

from iofast import open_reader, open_writer
from iofast.containers.lmdb import index_key
from iofast.containers.lmdb_pages import Tree, read_meta
from iofast.containers.lmdb_writer import MANIFEST_KEY
from iofast.record import Record
from tools.torture.drivers import Driver, damage
from tools.torture.drivers.reading import look_at


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
    for suffix in container_sets.SUFFIXES:
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


class Own(Driver):
    """What both drivers share: sound containers, and damage anywhere, after which nothing wrong may be read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = sound()

    def blind(self, chance: random.Random, seed: Seed) -> str:
        """Damage to any file, often to one byte alone."""
        name = chance.choice(sorted(seed.files))
        files = {**seed.files, name: damage.anywhere(chance, seed.files[name], chance.choice((1, 1, 4)))}
        return self.look(chance, seed, files, sound=True)

    def look(self, chance: random.Random, seed: Seed, files: dict[str, bytes], *, sound: bool) -> str:
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
    """Columns with other values and right checksums."""

    def step(self, chance: random.Random) -> str:
        seed = chance.choice(self.seeds)
        if chance.random() < 0.2:
            return self.blind(chance, seed)
        index, text = damage.columns(chance, seed.part(seed.index), json.loads(seed.part(seed.manifest)))
        changed = replace(seed, files=seed.with_part(seed.index, index))
        return self.look(chance, seed, changed.with_part(seed.manifest, text), sound=False)
