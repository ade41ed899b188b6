"""A decoder of JPEGs with restart markers on the device, by the kernel's own source (kernel/src/device.h).

    store = Store(tables, arena)      records of JPEGs, in host memory or the device's
    slot = Slot(...)                  a batch's host memory and its copy on the device

On the host, with NumPy's memory, each thread of a stage is a turn of a loop. Pixels equal `kernel.decode_batch`'s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.gpu.compiled import Kernels
from iofast.kernel import _native
from iofast.kernel.contract import ALL_FILTERS, DecodeOptions, Payloads
from iofast.kernel.native_batch import Context

STAGES = ("see", "weigh", "entropy", "blocks", "colour", "finish")
BLOCKS = {"see": 128, "weigh": 128, "entropy": 64, "blocks": 128, "colour": 256, "finish": 256}  # threads
DAMAGED = 1  # of a status
TAPS = 16
OVERREAD = 2048
POISON = 0xA5  # fills the host's memory, so that no value is read that was not written
TYPES = {"uint8": 0, "float32": 1, "bfloat16": 2, "float16": 3}


def _struct(*fields: tuple[Any, ...]) -> np.dtype[np.void]:
    return np.dtype(list(fields), align=True)


def _ints(*names: str) -> list[tuple[str, type[np.int32]]]:
    return [(name, np.int32) for name in names]


FILE = _struct(
    ("place", np.uint64),
    ("scan", np.uint32),
    ("segments", np.uint32),
    *_ints("width", "height", "components", "h", "v", "across", "down", "restart"),
    ("dc", np.int32, 3),
    ("ac", np.int32, 3),
)
IMAGE = _struct(
    ("file", FILE),
    ("box", np.int32, 8),
    *_ints("flip", "exif", "aliased", "refused", "left", "top", "right", "bottom"),
    ("mcus", np.int32, 4),
    *_ints("first", "in_row", "step", "segments"),
    ("fours", np.int32, 3),
    ("blocks", np.int32),
    ("coefs", np.uint64),
    ("samples", np.uint64),
    ("pixels", np.uint64),
)
POINTERS = (
    "images",
    "jpegs",
    "codes",
    "coefs",
    "samples",
    "pixels",
    "taps",
    "starts",
    "counts",
    "weights",
    "status",
    "out",
)
BATCH = _struct(
    *((name, np.uint64) for name in POINTERS),
    ("strides", np.int64, 4),
    *_ints("count", "room", "width", "height", "type"),
    ("scale", np.float32, (2, 3)),
)
TABLES = _native.device_sizes()[3]
CODES = 8 + 4 * 64  # where a table set's codes begin
assert (FILE.itemsize, IMAGE.itemsize, BATCH.itemsize) == _native.device_sizes()[:3]


def room(lengths: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Places of records, and their end: a record replaces a header by places of segments."""
    sizes = lengths.astype(np.int64) + lengths.astype(np.int64) // 8 + 1024
    return np.concatenate([[0], np.cumsum((sizes + 15) // 16 * 16)])


class Wanted(NamedTuple):
    """What is made of each batch."""

    size: tuple[int, int]
    type: str
    strides: tuple[int, int, int, int]  # of out, in bytes: image, row, column, channel
    scale: NDArray[np.float32]


class Crops(NamedTuple):
    """What is wanted of each image, as in `kernel.decode_batch`."""

    boxes: NDArray[np.int32]
    flips: NDArray[np.uint8]
    orientations: NDArray[np.uint8]


class Records(NamedTuple):
    """Where records go: row i to arena[places[i] : places[i + 1]]. Rows with a status are `decode_batch`'s."""

    arena: NDArray[np.uint8]
    places: NDArray[np.int64]
    tables: NDArray[np.uint8]
    files: NDArray[np.void]
    status: NDArray[np.int32]

    @classmethod
    def of(cls, arena: NDArray[np.uint8], places: NDArray[np.int64], tables: NDArray[np.uint8]) -> Records:
        """None of them is made yet."""
        return cls(arena, places, tables, np.zeros(len(places) - 1, FILE), np.zeros(len(places) - 1, np.int32))


def read(context: Context, source: Payloads, to: Records, start: int, stop: int) -> None:
    """Make the records of rows [start, stop)."""
    _native.device_read(context.handle, *source, *to, start, stop)


def place(
    files: NDArray[np.void], crops: Crops, images: NDArray[np.void], options: DecodeOptions, size: tuple[int, int]
) -> tuple[int, int, int, int, int]:
    """Fill `images`; see device_place."""
    chosen = ALL_FILTERS.index(options.filter)
    return _native.device_place(files, *crops, images, chosen, options.clip, size[1], size[0])


class HostMemory:
    """NumPy's memory in place of a device's, and Huffman tables."""

    def __init__(self, tables: NDArray[np.uint8] | None = None) -> None:
        self.arrays: dict[str, NDArray[np.uint8]] = {}
        self.tables = new_tables() if tables is None else tables

    def reserve(self, name: str, size: int) -> int:
        """The address of at least `size` bytes."""
        if name not in self.arrays or self.arrays[name].size != size:  # exact, so that an overrun is detected
            whole = np.full(size + 16, POISON, np.uint8)  # it begins as late as alignment permits
            start = 16 - (whole.ctypes.data + 16) % 16
            self.arrays[name] = whole[start : start + size]
        return self.arrays[name].ctypes.data

    def zero(self, name: str, size: int) -> None:
        self.arrays[name][:size] = 0


class DeviceMemory:
    """A torch device's memory, used on one stream."""

    def __init__(self, device: Any) -> None:
        import torch

        self.device, self.torch = device, torch
        self.arrays: dict[str, Any] = {}

    def reserve(self, name: str, size: int) -> int:
        """The address of at least `size` bytes."""
        if name not in self.arrays or self.arrays[name].numel() < size:
            self.arrays[name] = self.torch.empty(size + size // 8 + 256, dtype=self.torch.uint8, device=self.device)
        return int(self.arrays[name].data_ptr())

    def zero(self, name: str, size: int) -> None:
        self.arrays[name][:size].zero_()


class Work(NamedTuple):
    """A batch whose memory is set up: the batch as bytes, the sizes of `place`, and how many images."""

    batch: NDArray[np.void]
    sizes: tuple[int, int, int, int, int]
    images: int
    threads: tuple[int, ...]  # most of an image, by stage

    def blocks(self, stage: int) -> int:
        """How many groups of threads a stage needs for each image."""
        return -(-self.threads[stage] // BLOCKS[STAGES[stage]])


def prepare(
    memory: HostMemory | DeviceMemory, wanted: Wanted, count: int, sizes: tuple[int, int, int, int, int]
) -> Work:
    """Reserve a batch's working memory. The caller fills the addresses of images, jpegs, codes and out."""
    height, width = wanted.size
    room = (max(height, width) + 31) // 32 * 32
    coefs, pixels, *most = sizes
    batch = np.zeros(1, BATCH)
    axes = 2 * count
    for name, size in {
        "coefs": 2 * coefs,
        "samples": coefs,
        "pixels": 4 * pixels,
        "starts": 4 * axes * room,
        "counts": 4 * axes * room,
        "weights": 2 * TAPS * axes * room,
        "taps": 4 * (axes + count),
    }.items():
        batch[name] = memory.reserve(name, size)
    batch["status"] = batch["taps"] + np.uint64(4 * axes)
    batch["strides"], batch["type"], batch["scale"] = wanted.strides, TYPES[wanted.type], wanted.scale
    batch["count"], batch["room"], batch["width"], batch["height"] = count, room, width, height
    return Work(batch, sizes, count, (2 * room, 2 * room, *most, height * width))


def clear(memory: HostMemory | DeviceMemory, work: Work) -> None:
    """Zero what a batch needs to be zero."""
    memory.zero("coefs", 2 * work.sizes[0])
    memory.zero("taps", 12 * work.images)


def launch(kernels: Kernels, work: Work, address: int, stream: int, stages: range = range(len(STAGES))) -> None:
    """Launch the stages of the batch at this address of the device."""
    for stage in stages:
        if blocks := work.blocks(stage):
            kernels.launch(stage, address, (blocks, work.images), BLOCKS[STAGES[stage]], stream)


def launch_on_host(work: Work, stage: int) -> None:
    """Run the threads that a GPU would, those without work too."""
    _native.device_run(work.batch, stage, work.blocks(stage) * BLOCKS[STAGES[stage]])


class Slot:
    """A batch's host memory, page-locked, and its copy on the device: the batch, its images, then their records.

    `arena` is the room for records in bytes; 0 if they are in device memory already.
    """

    def __init__(self, device: Any, count: int, arena: int = 0) -> None:
        import torch

        first = (256 + count * IMAGE.itemsize + 255) // 256 * 256
        self.host = torch.empty(first + arena, dtype=torch.uint8, pin_memory=True)
        self.device = torch.empty(first + arena + 2 * OVERREAD, dtype=torch.uint8, device=device)
        view = self.host.numpy()
        self.batch = view[: BATCH.itemsize].view(BATCH)
        self.images = view[256 : 256 + count * IMAGE.itemsize].view(IMAGE)
        self.arena, self.first = view[first:], first
        self.address = int(self.device.data_ptr())

    def upload(self, work: Work, jpegs: int, codes: int, out: int, used: int = 0) -> None:
        """Copy the batch and `used` bytes of its records on the current stream. `jpegs` 0: the slot's own."""
        self.batch[:] = work.batch
        self.batch["images"], self.batch["jpegs"] = self.address + 256, jpegs or self.address + self.first
        self.batch["codes"], self.batch["out"] = codes, out
        size = self.first + used
        self.device[:size].copy_(self.host[:size], non_blocking=True)


def run_on_host(
    source: Payloads,
    crops: Crops,
    options: DecodeOptions,
    wanted: Wanted,
    out: NDArray[Any],
    memory: HostMemory | None = None,
) -> NDArray[np.int32]:
    """Decode a batch by the host's build of the device code. Returns a status for each image: 0 = done here."""
    count, memory, places = len(crops.boxes), memory or HostMemory(), room(source.lengths)
    memory.reserve("jpegs", int(places[-1]) + OVERREAD)
    memory.reserve("images", count * IMAGE.itemsize)
    records, images = Records.of(memory.arrays["jpegs"], places, memory.tables), memory.arrays["images"].view(IMAGE)
    read(Context(options), source, records, 0, count)
    work = prepare(memory, wanted, count, place(records.files, crops, images, options, wanted.size))
    clear(memory, work)
    work.batch["images"], work.batch["jpegs"] = images.ctypes.data, records.arena.ctypes.data
    work.batch["codes"], work.batch["out"] = memory.tables.ctypes.data + CODES, out.ctypes.data
    for stage in range(len(STAGES)):
        launch_on_host(work, stage)
    found = memory.arrays["taps"][8 * count :].view(np.int32)
    return np.where(images["refused"], -1, found & DAMAGED).astype(np.int32)


def new_tables() -> NDArray[np.uint8]:
    """An empty set of Huffman tables."""
    whole = np.zeros(TABLES + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + TABLES]
