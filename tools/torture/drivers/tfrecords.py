"""TFRecord files of other programs: framing, and Examples in it."""

import random
from pathlib import Path

import container_sets

from iofast.containers import tfrecord as framing
from iofast.errors import ContainerError
from iofast.foreign import tfrecord_features as records
from iofast.kernel import crc32c
from tools.torture.drivers import Driver, damage
from tools.torture.drivers.reading import look_at

_USUAL = records.USUAL
_NAMES = (
    *_USUAL["image"][:4],
    *_USUAL["label"][:3],
    *_USUAL["path"][:2],
    *records.TEXTS[:2],
    *records.KEYS[:2],
    "x",
    "",
)
_OPTIONS = {"names": {"seg.png": "x", "image": "image"}, "label_base": 1}


class Tfrecords(Driver):
    """Examples of odd features, merged and damaged, in sound frames; and frames that are damaged."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.images = [container_sets.picture(n, kind) for n, kind in ((1, "jpeg"), (2, "png"), (3, "gif"), (4, "bmp"))]

    def step(self, chance: random.Random) -> str:
        options = chance.choice((None, None, _OPTIONS))
        messages = [self.message(chance) for _ in range(chance.randint(1, 6))]
        data, known = b"".join(map(framed, messages)), None
        kind = chance.random()
        if kind < 0.3:
            data, known = damage.anywhere(chance, data), images(messages, options)
        elif kind < 0.5:
            data = b"".join(self.frame(chance, message) for message in messages)
        name = chance.choice(("x.tfrecord", "x-00000-of-00001"))

        def right(_: int, field: str, payload: bytes | None) -> bool:
            return known is None or field != "jpg" or payload is None or payload in known

        return look_at(self.folder / "look", {name: data}, name, chance, right, options)

    def message(self, chance: random.Random) -> bytes:
        """An Example, or nearly one."""
        entries = b"".join(
            tagged(1, self.entry(chance)) if chance.random() < 0.95 else odd(chance)
            for _ in range(chance.randint(0, 7))
        )
        message = tagged(1, entries)
        if chance.random() < 0.1:
            message += chance.choice((tagged(1, b""), odd(chance), message))
        return damage.anywhere(chance, message) if chance.random() < 0.2 else message

    def entry(self, chance: random.Random) -> bytes:
        """A feature with its name."""
        name = chance.choice(_NAMES).encode() if chance.random() < 0.95 else chance.choice((b"\xff", b"a" * 5000))
        parts = [tagged(1, name), tagged(2, self.feature(chance))]
        if chance.random() < 0.1:
            parts.append(chance.choice((parts[1], tagged(2, b""), odd(chance))))
        return b"".join(chance.sample(parts, len(parts)) if chance.random() < 0.1 else parts)

    def feature(self, chance: random.Random) -> bytes:
        """A list of bytes, floats or numbers."""
        kind = chance.choice((1, 1, 1, 2, 3, 3))
        if kind == 1:
            texts = (b"", b"7", b"cat", b"\xff\0", b"9" * 10, b"a\nb", b"x" * 5000)
            body = b"".join(
                tagged(1, chance.choice((*self.images, *texts))) for _ in range(chance.choice((1, 1, 1, 0, 2)))
            )
        elif kind == 2:
            body = tagged(1, bytes(chance.choice((0, 4, 8, 3)))) if chance.random() < 0.5 else b"\x0d" + bytes(4)
        else:
            numbers = [varint(damage.number(chance, 8, 3)) for _ in range(chance.choice((1, 1, 1, 2, 0)))]
            body = tagged(1, b"".join(numbers)) if chance.random() < 0.7 else b"".join(b"\x08" + own for own in numbers)
            body += chance.choice((b"", b"", tagged(1, b"\x80")))
        return tagged(kind, body)

    def frame(self, chance: random.Random, message: bytes) -> bytes:
        """A frame with another length, checksum or end than its message needs."""
        length = damage.number(chance, 8, len(message)) if chance.random() < 0.3 else len(message)
        head = length.to_bytes(8, "little")
        check = framing.mask(crc32c(head)) if chance.random() < 0.8 else damage.number(chance, 4)
        foot = framing.foot(crc32c(message)) if chance.random() < 0.7 else bytes(chance.choice((3, 4, 5)))
        return head + check.to_bytes(4, "little") + message + foot


def framed(message: bytes) -> bytes:
    """A message in a sound frame."""
    return framing.head(len(message)) + message + framing.foot(crc32c(message))


def varint(number: int) -> bytes:
    """A number as protobuf writes it; a negative one has ten bytes."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def tagged(number: int, body: bytes) -> bytes:
    """A field with a length."""
    return varint(8 * number + 2) + varint(len(body)) + body


def odd(chance: random.Random) -> bytes:
    """A field that no Example has, or that no message can have."""
    wire = chance.randrange(8)
    tag = varint(8 * chance.choice((0, 1, 2, 3, 99, (1 << 29) - 1, 1 << 29)) + wire)
    if wire == 3:
        return tag * chance.choice((1, 3, 70)) + b"\x0c" * chance.choice((0, 1, 3))
    return tag + chance.choice((b"\x05hello", bytes(8), b"\xff" * 10 + b"\1", varint(damage.number(chance, 8)), b""))


def images(messages: list[bytes], options: dict[str, object] | None) -> set[bytes] | None:
    """The images of sound records; None if one record is no Example."""
    own = records.ForeignOptions.of(options)
    found = set()
    for message in messages:
        try:
            span = records.understand(message, own).places.get(records.IMAGE_FIELD)
        except ContainerError:
            return None
        if span is not None:
            found.add(message[span.start : span.stop])
    return found
