"""Manifest and index of our own containers."""

import json
import random
from dataclasses import replace
from pathlib import Path

from tools.torture.drivers import Driver, damage, seeds
from tools.torture.drivers.reading import look_at


class Own(Driver):
    """What both drivers share: sound containers, and damage anywhere, after which nothing wrong may be read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = seeds.sound()

    def blind(self, chance: random.Random, seed: seeds.Seed) -> str:
        """Damage to any file, often to one byte alone."""
        name = chance.choice(sorted(seed.files))
        files = {**seed.files, name: damage.anywhere(chance, seed.files[name], chance.choice((1, 1, 4)))}
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
    """Columns with other values and right checksums."""

    def step(self, chance: random.Random) -> str:
        seed = chance.choice(self.seeds)
        if chance.random() < 0.2:
            return self.blind(chance, seed)
        index, text = damage.columns(chance, seed.part(seed.index), json.loads(seed.part(seed.manifest)))
        changed = replace(seed, files=seed.with_part(seed.index, index))
        return self.look(chance, seed, changed.with_part(seed.manifest, text), sound=False)
