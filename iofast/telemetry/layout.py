"""The bytes of a telemetry page: docs/format.md, section 12. Reading trusts nothing; writing is a pack and a checksum.

A slot carries a checksum besides its sequence counter, because Python has no memory barriers: on a processor that
reorders stores a reader could see an even counter before the figures that it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, Literal, NamedTuple
from zlib import crc32

from iofast.telemetry.counters import STAGES, Stages, StageStats

MAGIC: Final = b"iofastTP"
VERSION: Final = 1
SLOTS: Final = 16
SLOT_SIZE: Final = 256
HEADER_SIZE: Final = 256
SIZE: Final = HEADER_SIZE + SLOTS * SLOT_SIZE
RANK_AT: Final = 20

HEADER = Struct("<8sHHHHIiI4xQQ16s")  # magic, version, three sizes, pid, rank, world size, namespace, start, boot
RANK = Struct("<iI")  # rank and world size, inside of the header
SEQUENCE = Struct("<Q")
_CHECK = Struct("<I")
# kind, device, device number, serial, workers, prefetch, batch size, name: what seldom changes
_LOADER = Struct("<BBhIHHI24s")
# failed, epoch, occupancies; ten figures; three for each stage; bytes to the device
_FIGURES = Struct("<II4B10Q12QQ8x")

Kind = Literal["FastLoader", "watched"]
_KINDS: Final[tuple[Kind, ...]] = ("FastLoader", "watched")  # stored counting from 1: 0 is a slot nobody uses
_DEVICES: Final = ("cpu", "cuda", "other")
_NO_OCCUPANCY: Final = 255
_OCCUPANCY_STEPS: Final = 200
_U16, _U32, _U63 = (1 << 16) - 1, (1 << 32) - 1, (1 << 63) - 1


@dataclass(frozen=True)
class LoaderInfo:
    """What a loader is; 0 stands for what is not known.

    `num_workers` threads or processes, `prefetch` batches ahead, `batch_size` samples; `device` as torch writes it;
    `rank` of `world_size`, None where nobody said.
    """

    name: str
    kind: Kind = "watched"
    num_workers: int = 0
    prefetch: int = 0
    batch_size: int = 0
    device: str = "cpu"
    rank: int | None = None
    world_size: int = 0


class Figures(NamedTuple):
    """What a loader has done: totals since it was made, but `epoch`, `batch` (in this epoch) and `updated_ns`.

    A step goes from one batch handed over to the next; the first batch of an epoch counts in `epoch_start_ns` instead.
    `device_stall_ns` of `device_step_ns` were measured on the device, where there is one. `updated_ns` is
    CLOCK_MONOTONIC.
    """

    epoch: int = 0
    batch: int = 0
    images: int = 0
    steps: int = 0
    step_ns: int = 0
    wait_ns: int = 0
    epoch_start_ns: int = 0
    device_stall_ns: int = 0
    device_step_ns: int = 0
    updated_ns: int = 0


@dataclass(frozen=True)
class LoaderReport:
    """One loader of a page. `serial` numbers the loaders of a process: another one means another loader."""

    serial: int
    info: LoaderInfo
    figures: Figures
    stages: dict[str, StageStats]


class Header(NamedTuple):
    """Whose page it is. `rank` is −1 where nobody said."""

    pid: int
    rank: int
    world_size: int
    start_time: int
    pid_namespace: int
    boot: bytes

    @property
    def place(self) -> tuple[int, bytes]:
        """Where the pid means this process: namespace and boot id."""
        return self.pid_namespace, self.boot


def encode_header(header: Header) -> bytes:
    """`HEADER_SIZE` bytes."""
    pid, rank, world_size, started, namespace, boot = header
    sizes = VERSION, HEADER_SIZE, SLOTS, SLOT_SIZE
    return HEADER.pack(MAGIC, *sizes, pid, rank, world_size, namespace, started, boot).ljust(HEADER_SIZE, b"\0")


def decode_header(raw: bytes) -> Header | None:
    """None where this is not the beginning of a page of this version."""
    if len(raw) < HEADER.size:
        return None
    magic, *sizes, pid, rank, world_size, namespace, started, boot = HEADER.unpack_from(raw)
    if magic != MAGIC or sizes != [VERSION, HEADER_SIZE, SLOTS, SLOT_SIZE]:
        return None
    return Header(pid, rank, world_size, started, namespace, boot) if pid and rank >= -1 else None


def encode_loader(info: LoaderInfo, serial: int) -> bytes:
    """The part of a slot that seldom changes. Raises struct.error or ValueError where `info` is not as it should be."""
    device, _, number = info.device.partition(":")
    return _LOADER.pack(
        _KINDS.index(info.kind) + 1,
        _DEVICES.index(device) if device in _DEVICES else _DEVICES.index("other"),
        int(number) if number else -1,
        serial & _U32,
        min(info.num_workers, _U16),
        min(info.prefetch, _U16),
        min(info.batch_size, _U32),
        _name_bytes(info.name),
    )


def encode(loader: bytes, figures: Figures, stages: Stages | None) -> bytes:
    """A slot without its sequence counter: checksum and body, `SLOT_SIZE` − 8 bytes. Raises struct.error."""
    epoch, batch, images, *others = figures
    if stages is None:
        body = loader + _FIGURES.pack(0, min(epoch, _U32), *_NO_OCCUPANCIES, batch, images, 0, *others, *_NO_STAGES)
    else:
        read, decode, queue, transfer = sums = [counter.sums() for counter in stages.counters()]
        body = loader + _FIGURES.pack(
            min(sum([each[1] for each in sums]), _U32),
            min(epoch, _U32),
            *[_NO_OCCUPANCY if each[5] is None else round(_OCCUPANCY_STEPS * each[5]) for each in sums],
            batch,
            images,
            read[2],
            *others,
            *(read[0], read[3], read[4], decode[0], decode[3], decode[4]),
            *(queue[0], queue[3], queue[4], transfer[0], transfer[3], transfer[4]),
            transfer[2],
        )
    return _CHECK.pack(crc32(body)) + body


_NO_OCCUPANCIES: Final = (_NO_OCCUPANCY,) * len(STAGES)
_NO_STAGES: Final = (0,) * (3 * len(STAGES) + 1)


def _name_bytes(name: str) -> bytes:
    """At most 24 bytes of UTF-8, cut between characters; what a terminal would obey is left out."""
    printable = "".join(character for character in name if character.isprintable())
    return printable.encode(errors="ignore")[:24].decode(errors="ignore").encode()


def decode(raw: bytes, header: Header) -> LoaderReport | None:
    """What `encode` made, or None for a slot that nobody uses. Raises ValueError for anything else."""
    if raw == bytes(SLOT_SIZE - SEQUENCE.size):
        return None
    (check,), body = _CHECK.unpack_from(raw), raw[_CHECK.size :]
    if len(body) != _LOADER.size + _FIGURES.size or crc32(body) != check:
        raise ValueError("the checksum does not match")
    kind, device, number, serial, workers, prefetch, batch_size, name = _LOADER.unpack_from(body)
    failed, epoch, *rest = _FIGURES.unpack_from(body, _LOADER.size)
    full, (batch, images, nbytes, *others), stages, to_device = rest[:4], rest[4:14], rest[14:26], rest[26]
    if not 1 <= kind <= len(_KINDS) or device >= len(_DEVICES) or number < -1:
        raise ValueError("an unknown kind of loader or device")
    if any(each > _OCCUPANCY_STEPS and each != _NO_OCCUPANCY for each in full):
        raise ValueError("an occupancy above 1")
    if max(rest[4:]) > _U63:
        raise ValueError("a figure is negative")
    info = LoaderInfo(
        name=_checked_name(name),
        kind=_KINDS[kind - 1],
        num_workers=workers,
        prefetch=prefetch,
        batch_size=batch_size,
        device=_DEVICES[device] if number < 0 else f"{_DEVICES[device]}:{number}",
        rank=None if header.rank < 0 else header.rank,
        world_size=header.world_size,
    )
    moved, lost = (nbytes, 0, 0, to_device), (0, failed, 0, 0)  # pages tell these of one stage only
    return LoaderReport(serial, info, Figures(epoch, batch, images, *others), _stage_stats(full, stages, moved, lost))


def _checked_name(raw: bytes) -> str:
    name = raw.rstrip(b"\0").decode()  # UnicodeDecodeError is a ValueError
    if not name.isprintable():
        raise ValueError("a name that is not printable")
    return name


def _stage_stats(
    full: list[int], sums: list[int], moved: tuple[int, ...], lost: tuple[int, ...]
) -> dict[str, StageStats]:
    stats = {}
    for number, name in enumerate(STAGES):
        items, work, wait = sums[3 * number : 3 * number + 3]
        occupancy = None if full[number] == _NO_OCCUPANCY else full[number] / _OCCUPANCY_STEPS
        stats[name] = StageStats(items, lost[number], moved[number], work / 1e9, wait / 1e9, occupancy)
    return stats
