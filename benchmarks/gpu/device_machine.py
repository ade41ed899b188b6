"""Packed JPEGs, crops of them, and the decoder of iofast/gpu/jpegs.py on a GPU: what device_decode measures."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from iofast import kernel
from iofast.gpu import jpegs
from iofast.kernel import Payloads
from iofast.kernel.contract import DecodeOptions

SIDE = 224
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
SCALE = np.stack((1 / (255 * STD), -MEAN / STD)).astype(np.float32)
OPTIONS = DecodeOptions()
WIDTH = {"uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4}


@dataclass
class Report:
    folder: Path
    start: float = field(default_factory=time.monotonic)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        """Record and print a fact, and write all of them."""
        self.facts[name] = value
        print(f"[{time.monotonic() - self.start:6.1f} s] {name}: {value}", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "device_decode.json").write_text(json.dumps(self.facts, indent=1, default=str))
        lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in self.facts.items())]
        (self.folder / "device_decode.md").write_text("\n".join(lines) + "\n")

    def part(self, name: str, run: Callable[[], None]) -> None:
        """Run a part; its failure does not end the others."""
        try:
            run()
        except Exception:
            traceback.print_exc()
            self.add(f"{name} FAILED", traceback.format_exc(limit=-1).strip().splitlines()[-1])


@dataclass
class Packed:
    """Packed JPEGs one after another in a file."""

    path: Path
    offsets: np.ndarray
    lengths: np.ndarray
    sizes: np.ndarray  # width, height
    crcs: np.ndarray

    def source(self, chosen: np.ndarray, fd: int, exif: np.ndarray | None = None) -> Payloads:
        fds, exif = np.full(len(chosen), fd, np.int32), np.ones(len(chosen), np.uint8) if exif is None else exif
        return Payloads(fds, self.offsets[chosen], self.lengths[chosen], self.crcs[chosen], exif, None)


def made(number: int) -> bytes:
    """A photograph, packed: the short side 256, quality 90."""
    from benchmarks.gpu.data import one

    with tempfile.TemporaryDirectory() as folder:
        one(Path(folder), number)
        return pack(next(Path(folder).rglob("*.jpg")).read_bytes())


def pack(data: bytes) -> bytes:
    return bytes(kernel.transcode(data, kernel.TranscodeRecipe(size=256, mode="short", restart="auto")).data)


def packed(given: Path | None, most: int, folder: Path) -> Packed:
    """The JPEGs given, or made in less than 40 s on all cores."""
    if given:
        with np.load(given) as kept:
            whole, lengths = kept["bytes"], kept["lengths"].astype(np.uint64)
        files = [bytes(part) for part in np.split(whole, np.cumsum(lengths)[:-1].astype(np.int64))]
    else:
        count, cores, end = most, os.cpu_count() or 1, time.monotonic() + 40
        files = []
        with ProcessPoolExecutor(cores) as pool:
            for first in range(0, count, 8 * cores):
                if time.monotonic() < end:
                    files += pool.map(made, range(first, min(first + 8 * cores, count)))
    path = folder / f"{given.stem if given else 'made'}.bin"
    path.write_bytes(b"".join(files))
    lengths = np.array([len(each) for each in files], np.uint64)
    headers = [kernel.read_header(each) for each in files]
    sizes = np.array([(header.width, header.height) for header in headers], np.int32)
    crcs = np.array([kernel.crc32c(each) for each in files], np.uint32)
    return Packed(path, np.cumsum(lengths) - lengths, lengths, sizes, crcs)


def save(photos: Path, target: Path, count: int) -> None:
    """Pack photographs of a folder into an .npz for `--packed`."""
    paths = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:count]
    with ThreadPoolExecutor(2) as pool:
        files = list(pool.map(lambda path: pack(path.read_bytes()), paths))
    np.savez(target, bytes=np.frombuffer(b"".join(files), np.uint8), lengths=np.array([len(each) for each in files]))
    print(f"{target}: {len(files)} JPEGs, {sum(map(len, files)) / len(files):.0f} bytes each")


def crops(rng: np.random.Generator, sizes: np.ndarray, side: int = SIDE) -> jpegs.Crops:
    """RandomResizedCrop(side) with flips."""
    width, height = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    area, ratio = (
        width * height * rng.uniform(0.08, 1, len(sizes)),
        np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), len(sizes))),
    )
    wide = np.minimum(np.sqrt(area * ratio).round(), width).clip(1)
    high = np.minimum(np.sqrt(area / ratio).round(), height).clip(1)
    x, y = np.floor(rng.random(len(sizes)) * (width - wide + 1)), np.floor(rng.random(len(sizes)) * (height - high + 1))
    boxes = np.zeros((len(sizes), 8), np.int32)
    boxes[:, 0], boxes[:, 1], boxes[:, 2], boxes[:, 3] = x, y, x + wide, y + high
    boxes[:, 4:6] = side
    return jpegs.Crops(boxes, rng.integers(0, 2, len(sizes)).astype(np.uint8), np.ones(len(sizes), np.uint8))


def wanted(kind: str, channels_last: bool = True, side: int = SIDE) -> jpegs.Wanted:
    one, row = WIDTH[kind], side * WIDTH[kind]
    strides = (3 * side * row, 3 * row, 3 * one, one) if channels_last else (3 * side * row, row, one, side * row)
    return jpegs.Wanted((side, side), kind, strides, SCALE)


def by_nvcc(compiled: Any, architecture: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "device.cu"
        path.write_text("#include <stdint.h>\n" + compiled.source())
        subprocess.run(
            ["nvcc", *compiled.OPTIONS, f"-arch={architecture}", "-cubin", path, "-o", path.with_suffix(".cubin")],
            check=True,
        )
        return path.with_suffix(".cubin").read_bytes()


@dataclass
class Loaded:
    """The records of some payloads in a slot, or in device memory at `resident`."""

    slot: jpegs.Slot
    files: np.ndarray
    used: int = 0
    resident: int = 0


class Machine:
    """The decoder on a GPU: memory, tables and kernels. One thread at a time, on one stream."""

    def __init__(self) -> None:
        import torch

        from iofast.gpu import compiled

        self.torch, self.device = torch, torch.device("cuda", 0)
        torch.cuda.init()
        torch.zeros(1, device=self.device)
        self.stream = torch.cuda.Stream()
        major, minor = torch.cuda.get_device_capability(0)
        begun = time.monotonic()
        try:
            self.code = compiled.binary(f"sm_{major}{minor}")
            self.compiler = "NVRTC"
        except Exception:  # the figures do not depend on who compiled
            traceback.print_exc()
            self.code, self.compiler = by_nvcc(compiled, f"sm_{major}{minor}"), "nvcc, for want of NVRTC"
        self.compiler += f" in {time.monotonic() - begun:.1f} s"
        self.kernels = compiled.Kernels(self.code, jpegs.STAGES)
        self.memory, self.tables = jpegs.DeviceMemory(self.device), jpegs.new_tables()
        self.codes = torch.zeros(jpegs.TABLES, dtype=torch.uint8, device=self.device)
        self.known, self.lock = 0, threading.Lock()
        torch.cuda.synchronize()  # what was zeroed is zero before another stream writes to it

    def codes_address(self) -> int:
        """Where the Huffman tables are, copied if new ones were found."""
        count = int(self.tables[:4].view(np.int32)[0])
        if count != self.known:
            self.codes.copy_(self.torch.from_numpy(self.tables))
            self.known = count
        return int(self.codes.data_ptr()) + jpegs.CODES

    def start(
        self, batch: Loaded, drawn: jpegs.Crops, kind: jpegs.Wanted, out: Any, poison: bool = False
    ) -> jpegs.Work:
        """Copy a batch and launch its stages, on the current stream; `poison`: in memory full of garbage."""
        sizes = jpegs.place(batch.files, drawn, batch.slot.images, OPTIONS, kind.size)
        work = jpegs.prepare(self.memory, kind, len(drawn.boxes), sizes)
        for array in self.memory.arrays.values() if poison else ():
            array.fill_(jpegs.POISON)
        batch.slot.upload(work, batch.resident, self.codes_address(), int(out.data_ptr()), batch.used)
        self.launch(batch.slot, work)
        return work

    def launch(self, slot: jpegs.Slot, work: jpegs.Work) -> None:
        jpegs.clear(self.memory, work)
        jpegs.launch(self.kernels, work, slot.address, self.torch.cuda.current_stream().cuda_stream)

    def damaged(self, count: int) -> np.ndarray:
        """The images of the last batch that the device found damaged."""
        return self.memory.arrays["taps"][8 * count : 12 * count].cpu().numpy().view(np.int32) & jpegs.DAMAGED


def loaded(machine: Machine, source: Payloads, slot: jpegs.Slot | None = None, context: Any = None) -> Loaded:
    count, places = len(source.fds), jpegs.room(source.lengths)
    slot = slot or jpegs.Slot(machine.device, count, int(places[-1]))
    records = jpegs.Records.of(slot.arena, places, machine.tables)
    jpegs.read(context or kernel.Context(OPTIONS), source, records, 0, count)
    return Loaded(slot, records.files, int(places[-1]))


def by_kernel(source: Payloads, drawn: jpegs.Crops, out: np.ndarray, pool: ThreadPoolExecutor, cores: int) -> None:
    """The CPU kernel's pixels."""
    count, status = len(drawn.boxes), np.zeros(len(drawn.boxes), np.int32)
    edges = np.linspace(0, count, cores + 1).astype(int)

    def rows(part: int) -> None:
        start, stop = int(edges[part]), int(edges[part + 1])
        kernel.decode_batch(kernel.Context(OPTIONS), source, drawn.boxes, drawn.flips, out, status, start, stop)

    list(pool.map(rows, range(cores)))
    assert not status.any(), f"the kernel refused {status.nonzero()[0]}"


def normalised(pixels: np.ndarray, kind: str) -> np.ndarray:
    """The values of a batch as bits: float32, or rounded to bfloat16."""
    values = pixels.astype(np.float32) * SCALE[0] + SCALE[1]
    bits = values.view(np.uint32)
    if kind == "float32":
        return bits
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
