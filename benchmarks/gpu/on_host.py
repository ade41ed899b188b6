"""The device's code, built for the host and run there: each thread of a stage is a turn of a loop."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.gpu.jpegs import Crops, Records, place, read, room
from iofast.gpu.stages import GROUPS, STAGES, Output, Prepared, new_tables, order, prepare
from iofast.gpu.structs import CODES, DAMAGED, IMAGE, OVERREAD
from iofast.kernel import _native
from iofast.kernel.contract import DecodeOptions, Payloads
from iofast.kernel.native_batch import Context

POISON = 0xA5  # fills the memory, so that no value is read that was not written


class HostMemory:
    """NumPy's memory in place of a device's, and Huffman tables."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self.tables = new_tables()

    def reserve(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Exactly as many bytes, so that an overrun is detected."""
        for name, size in sizes.items():
            block = np.full(size + 16, POISON, np.uint8)  # the memory begins as late as alignment permits
            start = 16 - (block.ctypes.data + 16) % 16
            self.arrays[name] = block[start : start + size]
        return {name: self.arrays[name].ctypes.data for name in sizes}

    def zero(self, names: Sequence[str]) -> None:
        for name in names:
            self.arrays[name][:] = 0

    def put(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        """The arrays themselves, which stay as long as this memory."""
        self.arrays |= {name: np.ascontiguousarray(column) for name, column in columns.items()}
        return {name: self.arrays[name].ctypes.data for name in columns}


def launch_on_host(prepared: Prepared) -> None:
    """Run the threads that a GPU would, those without work too."""
    for stage in order(prepared):
        _native.device_run(prepared.batch, STAGES.index(stage), prepared.groups(stage) * GROUPS[stage])


def run_on_host(memory: HostMemory, prepared: Prepared, out: NDArray[Any]) -> None:
    """Run a batch whose records, if any, are `memory.arrays["jpegs"]`."""
    if "jpegs" in memory.arrays:
        prepared.batch["jpegs"] = memory.arrays["jpegs"].ctypes.data
    prepared.batch["out"] = out.ctypes.data
    prepared.batch["codes"] = memory.tables.ctypes.data + CODES
    launch_on_host(prepared)


def decode_on_host(
    source: Payloads, crops: Crops, options: DecodeOptions, output: Output, out: NDArray[Any]
) -> NDArray[np.int32]:
    """Decode a batch. Returns a status for each image: 0 = done here."""
    count, memory, places = len(crops.boxes), HostMemory(), room(source.lengths)
    memory.reserve({"jpegs": int(places[-1]) + OVERREAD, "images": count * IMAGE.itemsize})
    records, images = Records.of(memory.arrays["jpegs"], places, memory.tables), memory.arrays["images"].view(IMAGE)
    read(Context(options), source, records)
    prepared = prepare(memory, output, images, place(records.files, crops, images, options, output.size))
    run_on_host(memory, prepared, out)
    found = memory.arrays["taps"][8 * count : 12 * count].view(np.int32)
    return np.where(images["refused"], -1, found & DAMAGED).astype(np.int32)
