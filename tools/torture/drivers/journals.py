"""What a resumed pack reads: the journal of encoded records, and the entries of full shards."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import google_crc32c
import lmdb_containers
import tar_sets

from iofast.containers.base import Description
from iofast.containers.journal import HEADER_SIZE, Block, JournalFailure, JournalRecord, JournalWriter, read_blocks
from iofast.containers.shards import ShardCut
from iofast.containers.tar import TarWriter
from iofast.containers.tfrecord import TfrecordWriter
from iofast.errors import ContainerError
from iofast.record import ImageInfo
from tools.torture.drivers import Driver, damage
from tools.torture.drivers.reading import check_message, install

_SHARD = 12_000
_RECORDS = [lmdb_containers.sample(i, 500 * (i % 4), "train" if i < 9 else "val") for i in range(13)]
_WRITERS = {"x.tar": TarWriter, "x.tfrecord": TfrecordWriter}


class Journals(Driver):
    """Damage that a checksum shows, and other contents with right checksums."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.blocks = [
            Block(
                chunk,
                tuple(JournalRecord(9 * chunk + n, n, ImageInfo(n, 4, 5), {"jpg": b"a" * n}) for n in range(3)),
                (JournalFailure(9 * chunk + 5, b"a/\xff.jpg", "no"),) * (chunk % 2),
            )
            for chunk in range(4)
        ]  # fmt: skip
        with JournalWriter(folder / "sound") as writer:
            self.places = [writer.append(block.chunk, block.records, block.failures) for block in self.blocks]
        self.data = (folder / "sound").read_bytes()
        self.whole: dict[str, dict[str, bytes]] = {}
        self.begun: dict[str, dict[str, bytes]] = {}
        self.times: dict[str, dict[str, int]] = {}
        for name in _WRITERS:
            (folder / name).mkdir()
            tar_sets.build(folder / name / name, _RECORDS, Description(), _SHARD)
            self.whole[name] = tar_sets.contents(folder / name)
            started = folder / f"begun-{name}"
            started.mkdir()
            writer = make_writer(name, started)
            for sample in _RECORDS:
                writer.write(*sample)
            writer.abort()
            self.begun[name] = {
                each: data for each, data in tar_sets.contents(started).items() if each.startswith(("rows-", "shard-"))
            }
            self.times[name] = {each: (started / each).stat().st_mtime_ns for each in self.begun[name]}

    def step(self, chance: random.Random) -> str:
        return self.blocks_step(chance) if chance.random() < 0.6 else self.resume_step(chance)

    def blocks_step(self, chance: random.Random) -> str:
        """Read a journal of encoded records, then append to it."""
        data, sealed = bytearray(self.data), chance.random() < 0.7
        if sealed:
            for place in damage.some(chance, self.places, 2):
                self.change_block(chance, data, *place)
        else:
            data = bytearray(damage.anywhere(chance, bytes(data)))
        folder = self.folder / "look"
        install(folder, {"journal": bytes(data)})
        path, ended, raised = folder / "journal", "whole", None
        try:
            for block in read_blocks(path):
                assert sealed or block in self.blocks, f"a block that nobody wrote: {block!r:.200}"
        except ContainerError as error:
            check_message(error, {"journal"})
            ended, raised = "damaged", error
        assert sealed or raised is None, f"a torn end is left out, but: {raised}"
        with JournalWriter(path) as writer:
            writer.append(77, self.blocks[0].records)
        if ended == "whole":
            assert list(read_blocks(path))[-1].chunk == 77, "what was added is not found"
        return ended

    def change_block(self, chance: random.Random, data: bytearray, offset: int, length: int) -> None:
        """Change body or header of a block; its checksums are right."""
        body = offset + HEADER_SIZE
        for _ in range(chance.randint(1, 3)):
            if chance.random() < 0.3:
                layout, at = chance.choice((("<Q", 8), ("<I", 16), ("<I", 20), ("<Q", 24), ("<H", 6)))
                damage.put(data, layout, offset + at, damage.number(chance, struct.calcsize(layout), length, 3))
            else:
                at = body + chance.randrange(length - HEADER_SIZE)
                layout = chance.choice(("<B", "<H", "<I"))
                value = damage.number(chance, struct.calcsize(layout), 3)
                if at + struct.calcsize(layout) <= offset + length:
                    damage.put(data, layout, at, value)
        damage.put(data, "<I", offset + 32, google_crc32c.value(bytes(data[body : offset + length])))
        damage.put(data, "<I", offset + 36, google_crc32c.value(bytes(data[offset : offset + 36])))

    def resume_step(self, chance: random.Random) -> str:
        """Resume a set of shards: its bytes are those of an undisturbed run, whatever its entries say."""
        name = chance.choice(list(_WRITERS))
        files = dict(self.begun[name])
        own = chance.choice(sorted(files))
        files[own] = damage.anywhere(chance, files[own])
        folder = self.folder / "resumed"
        install(folder, files)
        for each, changed in self.times[name].items():  # a shard that was changed has another time, or another size
            if not (each == own and own.startswith("shard-")):
                os.utime(folder / each, ns=(changed, changed))
        writer = make_writer(name, folder)
        kept = writer.resume()
        for sample in _RECORDS:
            if sample[0] > kept.position:
                writer.write(*sample)
        writer.finish(Description())
        found = {final: (folder / staged).read_bytes() for staged, final in writer.files.items()}
        assert found == self.whole[name], f"{name}: other bytes than of a run that was not disturbed"
        return "resumed" if kept.records else "begun anew"


def make_writer(name: str, folder: Path) -> TarWriter | TfrecordWriter:
    """The writer of a set in this folder."""
    if name == "x.tar":
        return TarWriter(folder, name, cut=ShardCut(_SHARD))
    return TfrecordWriter(folder, name, Description(), cut=ShardCut(_SHARD))
