"""The bytes of a telemetry page: docs/format.md, section 12. Reading trusts nothing; writing is a pack and a checksum.

A slot carries a checksum besides its sequence counter, because Python has no memory barriers: on a processor that
reorders stores a reader could see an even counter before the figures that it stands for. A loader's phases have a slot
of their own behind all others, so that a page of version 1 is the beginning of one of version 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Final, Literal, NamedTuple
from zlib import crc32

from iofast.telemetry.counters import STAGES, Stages, StageStats

MAGIC: Final = b"iofastTP"
VERSION: Final = 2
SLOTS: Final = 16
SLOT_SIZE: Final = 256
HEADER_SIZE: Final = 256
PHASES: Final = 8  # that a phase slot has room for
PHASE_SLOT_SIZE: Final = 408
PHASES_AT: Final = HEADER_SIZE + SLOTS * SLOT_SIZE
SIZE: Final = PHASES_AT + SLOTS * PHASE_SLOT_SIZE
RANK_AT: Final = 20

# magic, version, three sizes, pid, rank, world size, phases, size of a phase slot, namespace, start, boot
HEADER = Struct("<8sHHHHIiIHHQQ16s")
RANK = Struct("<iI")  # rank and world size, inside of the header
SEQUENCE = Struct("<Q")
_CHECK = Struct("<I")
# kind, device, device number, serial, workers, prefetch, batch size, name: what seldom changes
_LOADER = Struct("<BBhIHHI24s")
# failed, epoch, occupancies; ten figures; three for each stage; bytes to the device
_FIGURES = Struct("<II4B10Q12QQ8x")
_PHASE_HEAD = Struct("<IBB6x")  # serial, clock, how many
_PHASE = Struct("<24sQQQ")  # name, entered, timed, nanoseconds

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


class Totals(NamedTuple):
    """What a loader has done: totals since it was made, but `epoch`, `batch` (in this epoch) and `updated_ns`.

    A step goes from one batch handed over to the next; what the first batch of an epoch and the next() that ends it
    take counts in `epoch_start_ns` instead.
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


class PhaseTotals(NamedTuple):
    """A phase of a loader's steps so far: `entered` so often, of which `timed` took `ns` nanoseconds together.

    A device's clock says some steps later how long a phase took, and of some never: then fewer are timed than entered.
    """

    entered: int
    timed: int
    ns: int


@dataclass(frozen=True)
class LoaderReport:
    """One loader of a page. `serial` numbers the loaders of a process: another one means another loader.

    `phases` are by name, those that were entered first; `phases_on_device`: a CUDA device's clock has timed them.
    """

    serial: int
    info: LoaderInfo
    figures: Totals
    stages: dict[str, StageStats]
    phases: dict[str, PhaseTotals] = field(default_factory=dict)
    phases_on_device: bool = False


class PageHeader(NamedTuple):
    """Whose page it is. `rank` is −1 where nobody said. Pages of version 1 have no phases."""

    pid: int
    rank: int
    world_size: int
    start_time: int
    pid_namespace: int
    boot: bytes
    version: int = VERSION

    @property
    def size(self) -> int:
        """Of the whole page, in bytes."""
        return SIZE if self.version == VERSION else PHASES_AT

    @property
    def place(self) -> tuple[int, bytes]:
        """Where the pid means this process: namespace and boot id."""
        return self.pid_namespace, self.boot


def encode_header(header: PageHeader) -> bytes:
    """`HEADER_SIZE` bytes."""
    pid, rank, world_size, started, namespace, boot, version = header
    sizes, phases = (version, HEADER_SIZE, SLOTS, SLOT_SIZE), _PHASE_SIZES[version]
    return HEADER.pack(MAGIC, *sizes, pid, rank, world_size, *phases, namespace, started, boot).ljust(
        HEADER_SIZE, b"\0"
    )


def decode_header(raw: bytes) -> PageHeader | None:
    """None where this is not the beginning of a page of this version or the one before."""
    if len(raw) < HEADER.size:
        return None
    magic, version, *sizes, pid, rank, world_size, phases, phase_slot, namespace, started, boot = HEADER.unpack_from(
        raw
    )
    if magic != MAGIC or sizes != [HEADER_SIZE, SLOTS, SLOT_SIZE] or _PHASE_SIZES.get(version) != (phases, phase_slot):
        return None
    return PageHeader(pid, rank, world_size, started, namespace, boot, version) if pid and rank >= -1 else None


_PHASE_SIZES: Final = {1: (0, 0), VERSION: (PHASES, PHASE_SLOT_SIZE)}  # by version


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


def encode_phases(serial: int, phases: Sequence[tuple[str, PhaseTotals]], on_device: bool) -> bytes:
    """A phase slot without its sequence counter, of the first `PHASES` of `phases`. Raises struct.error."""
    told = phases[:PHASES]
    rows = [_PHASE.pack(_name_bytes(str(name)) or b"?", *totals) for name, totals in told]
    body = b"".join((_PHASE_HEAD.pack(serial & _U32, on_device, len(told)), *rows))
    body = body.ljust(PHASE_SLOT_SIZE - SEQUENCE.size - _CHECK.size, b"\0")
    return _CHECK.pack(crc32(body)) + body


def encode(loader: bytes, figures: Totals, stages: Stages | None) -> bytes:
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


@lru_cache(maxsize=256)
def _name_bytes(name: str) -> bytes:
    """At most 24 bytes of UTF-8, cut between characters; what a terminal would obey is left out."""
    printable = "".join(character for character in name if character.isprintable())
    return printable.encode(errors="ignore")[:24].decode(errors="ignore").encode()


def decode(raw: bytes, header: PageHeader) -> LoaderReport | None:
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
    return LoaderReport(serial, info, Totals(epoch, batch, images, *others), _stage_stats(full, stages, moved, lost))


def decode_phases(raw: bytes, serial: int) -> tuple[dict[str, PhaseTotals], bool]:
    """What `encode_phases` made: the phases of the loader `serial`, and whether a device has timed them; none where
    nobody wrote any. Raises ValueError for anything else. Names that were cut to the same are added up.
    """
    if raw == bytes(PHASE_SLOT_SIZE - SEQUENCE.size):
        return {}, False
    (check,), body = _CHECK.unpack_from(raw), raw[_CHECK.size :]
    if len(raw) != PHASE_SLOT_SIZE - SEQUENCE.size or crc32(body) != check:
        raise ValueError("the checksum of the phases does not match")
    whose, clock, count = _PHASE_HEAD.unpack_from(body)
    if whose != serial or clock > 1 or count > PHASES:
        raise ValueError("phases of another loader, an unknown clock, or too many phases")
    found: dict[str, PhaseTotals] = {}
    for number in range(count):
        name, *totals = _PHASE.unpack_from(body, _PHASE_HEAD.size + number * _PHASE.size)
        before = found.get(checked := _checked_name(name), PhaseTotals(0, 0, 0))
        found[checked] = PhaseTotals(*map(sum, zip(before, totals, strict=True)))
        if max(found[checked]) > _U63:
            raise ValueError("a figure of a phase is negative")
    return found, bool(clock)


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
