"""Tar shards of other programs: USTAR, GNU and pax members in any order, with any values in their headers."""

import random
from pathlib import Path

import container_sets

from tools.torture.drivers import Driver, damage
from tools.torture.drivers.reading import look_at

_KEYS = ("0001", "0002", "a/0003", "b/c.d/0004", "é", "__x__/1", ".hidden", "no dot", "a//.b", "0001.0", "a\nb")
_KEYS += ("a" * 90,)
_FIELDS = ("jpg", "JPEG", "png", "cls", "json", "txt", "seg.png", "rgb", "__x", "pkl", "", "..", "x" * 70, "\n")
_OPTIONS = (None, None, {"names": {"label": "txt"}}, {"names": {"label": "json/a"}, "label_base": 1})
_KINDS = (b"0", b"\0", b"7", b"1", b"2", b"5", b"3", b"6", b"S", b"V", b"\xff")
_PAX = ("path", "size", "linkpath", "mtime", "GNU.sparse.size", "comment", "é")


class Tars(Driver):
    """Archives made of odd members, and sound ones with damage."""

    MEMORY = 48  # MiB; names may have a megabyte, and there are several copies

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bodies = [container_sets.picture(n, kind) for n, kind in ((1, "jpeg"), (2, "png"), (3, "webp"))]
        self.bodies += [b"", b"3", b" 7 ", b"9" * 40, b"-1", bytes(15 * 3), b"x" * 513]

    def step(self, chance: random.Random) -> str:
        shards = {f"x-{number:06d}.tar": self.archive(chance) for number in range(chance.choice((1, 1, 1, 3)))}
        name = "x-000000.tar" if len(shards) == 1 else "x-{000000..000002}.tar"
        return look_at(self.folder / "look", shards, name, chance, options=chance.choice(_OPTIONS))

    def archive(self, chance: random.Random) -> bytes:
        """One shard."""
        parts = []
        for _ in range(chance.randint(1, 12)):
            if chance.random() < 0.3:
                parts.append(self.extension(chance))
            parts.append(self.member(chance))
        end = bytes(1024) if chance.random() < 0.9 else b""
        data = b"".join(parts) + end
        return damage.anywhere(chance, data) if chance.random() < 0.3 else data

    def member(self, chance: random.Random) -> bytes:
        """A header and what follows it."""
        name = f"{chance.choice(_KEYS)}.{chance.choice(_FIELDS)}".encode()
        body = chance.choice(self.bodies) if chance.random() < 0.7 else self.text(chance)
        kind = b"0" if chance.random() < 0.8 else chance.choice(_KINDS)
        return header(chance, name, body, kind) + body + bytes(-len(body) % 512)

    def text(self, chance: random.Random) -> bytes:
        """The JSON of a member."""
        said = {"label": 1, "width": 5, "height": 3, "a": {"b": [1, 2]}}
        return damage.text(chance, damage.value(chance, said) if chance.random() < 0.7 else said)

    def extension(self, chance: random.Random) -> bytes:
        """A long name, or a pax header, for the next member."""
        kind = chance.choice(b"xxxLLKg")
        if kind in b"LK":
            name = chance.choice((*_KEYS, "/" * 4000, "a/" * 2000 + "x", "." * 3000, "_" * 5000, "a." * 400_000))
            if chance.random() < 0.02:
                name = chance.choice("/._a") * (1 << 20)
            body = f"{name}.{chance.choice(_FIELDS)}".encode()[: 1 << 20] + b"\0"
        else:
            body = b"".join(pax(chance) for _ in range(chance.randint(1, 4)))
        return header(chance, b"././@x", body, bytes([kind])) + body + bytes(-len(body) % 512)


def pax(chance: random.Random) -> bytes:
    """One line of a pax header."""
    name = chance.choice(_PAX)
    value = str(chance.choice((*_KEYS, 0, 1, 512, 10**18, -1, "9" * 30, damage.number(chance, 8))))
    body = f" {name}={value}\n".encode()
    length = len(body) + 1
    length += len(str(length)) - 1 if len(str(length + len(str(length)) - 1)) == len(str(length)) else len(str(length))
    if chance.random() < 0.15:
        length = damage.number(chance, 4, length)
    return str(length).encode() + body


def header(chance: random.Random, name: bytes, body: bytes, kind: bytes) -> bytes:
    """512 bytes, their checksum right."""
    block = bytearray(512)
    block[:100] = name[:100].ljust(100, b"\0")
    size = len(body) if chance.random() < 0.85 else damage.number(chance, 8, len(body))
    if size < 1 << 33 and chance.random() < 0.9:
        block[124:136] = b"%011o\0" % size
    else:
        block[124:136] = b"\x80" + size.to_bytes(11, "big")
    block[156:157] = kind
    if chance.random() < 0.8:
        block[257:265] = b"ustar\x0000"
        if chance.random() < 0.2:
            block[345:350] = chance.choice((b"a/b/c", b"..\0..", b"/////"))
    if chance.random() < 0.1:
        block[chance.randrange(512)] = chance.randrange(256)
    block[148:156] = b" " * 8
    total = sum(block)
    if chance.random() < 0.1:
        total -= 256 * sum(byte > 127 for byte in block)
    block[148:156] = b"%06o\0 " % (max(total, 0) & 0o777777)
    return bytes(block)
