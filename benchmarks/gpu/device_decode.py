"""The decoder of iofast/gpu/jpegs.py on a GPU: first whether its pixels are the kernel's, then its speed.

    python -m benchmarks.gpu.device_decode [--host] [--packed FILE] [--crops 10240] [--seconds 5] [FOLDER]

Results go to FOLDER ($OUT, or device-decode) as device_decode.json and device_decode.md, after each part. `--packed` is
an .npz of JPEGs made by `--save`; without it photographs are made and packed here. `--host` needs no GPU: the host's
build decodes some crops.
"""

from __future__ import annotations

import argparse
import itertools
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

    def source(self, chosen: np.ndarray, fd: int) -> Payloads:
        count = len(chosen)
        return Payloads(
            np.full(count, fd, np.int32), self.offsets[chosen], self.lengths[chosen], self.crcs[chosen], np.ones(count, np.uint8), None
        )


def made(number: int) -> bytes:
    """A photograph, packed: the short side 256, quality 90."""
    from benchmarks.gpu.data import one

    with tempfile.TemporaryDirectory() as folder:
        one(Path(folder), number)
        return pack(next(Path(folder).rglob("*.jpg")).read_bytes())


def pack(data: bytes) -> bytes:
    return bytes(kernel.transcode(data, kernel.TranscodeRecipe(size=256, mode="short", restart="auto")).data)


def packed(args: argparse.Namespace, folder: Path) -> Packed:
    """The JPEGs given, or made in less than 40 s on all cores."""
    if args.packed:
        with np.load(args.packed) as kept:
            whole, lengths = kept["bytes"], kept["lengths"].astype(np.uint64)
        files = [bytes(part) for part in np.split(whole, np.cumsum(lengths)[:-1].astype(np.int64))]
    else:
        count, cores, end = args.images, os.cpu_count() or 1, time.monotonic() + 40
        files = []
        with ProcessPoolExecutor(cores) as pool:
            for first in range(0, count, 8 * cores):
                if time.monotonic() < end:
                    files += pool.map(made, range(first, min(first + 8 * cores, count)))
    path = folder / "packed.bin"
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


def crops(rng: np.random.Generator, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Boxes of RandomResizedCrop(224), and flips."""
    width, height = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    area, ratio = width * height * rng.uniform(0.08, 1, len(sizes)), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), len(sizes)))
    wide = np.minimum(np.sqrt(area * ratio).round(), width).clip(1)
    high = np.minimum(np.sqrt(area / ratio).round(), height).clip(1)
    x, y = np.floor(rng.random(len(sizes)) * (width - wide + 1)), np.floor(rng.random(len(sizes)) * (height - high + 1))
    boxes = np.zeros((len(sizes), 8), np.int32)
    boxes[:, 0], boxes[:, 1], boxes[:, 2], boxes[:, 3] = x, y, x + wide, y + high
    boxes[:, 4:6] = SIDE
    return boxes, rng.integers(0, 2, len(sizes)).astype(np.uint8)


def wanted(kind: str, channels_last: bool = True) -> jpegs.Wanted:
    one, row = WIDTH[kind], SIDE * WIDTH[kind]
    strides = (3 * SIDE * row, 3 * row, 3 * one, one) if channels_last else (3 * SIDE * row, row, one, SIDE * row)
    return jpegs.Wanted((SIDE, SIDE), kind, strides, SCALE)


def by_nvcc(compiled: Any, architecture: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "device.cu"
        path.write_text("#include <stdint.h>\n" + compiled.source())
        subprocess.run(["nvcc", *compiled.OPTIONS, f"-arch={architecture}", "-cubin", path, "-o", path.with_suffix(".cubin")], check=True)
        return path.with_suffix(".cubin").read_bytes()


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

    def codes_address(self) -> int:
        """Where the Huffman tables are, copied if new ones were found."""
        count = int(self.tables[:4].view(np.int32)[0])
        if count != self.known:
            self.codes.copy_(self.torch.from_numpy(self.tables))
            self.known = count
        return int(self.codes.data_ptr()) + jpegs.CODES

    def start(
        self, slot: jpegs.Slot, files: np.ndarray, boxes: np.ndarray, flips: np.ndarray, kind: jpegs.Wanted, out: Any,
        used: int = 0, resident: int = 0, run: bool = True,
    ) -> jpegs.Work:  # fmt: skip
        """Copy a batch and launch its stages, on the current stream."""
        count = len(boxes)
        sizes = jpegs.place(files, boxes, flips, np.ones(count, np.uint8), slot.images, OPTIONS, kind.size)
        work = jpegs.prepare(self.memory, kind, count, sizes)
        slot.upload(work, resident, self.codes_address(), int(out.data_ptr()), used)
        if run:
            self.launch(slot, work)
        return work

    def launch(self, slot: jpegs.Slot, work: jpegs.Work) -> None:
        jpegs.clear(self.memory, work)
        jpegs.launch(self.kernels, work, slot.address, self.torch.cuda.current_stream().cuda_stream)

    def damaged(self, count: int) -> np.ndarray:
        """The images of the last batch that the device found damaged."""
        return self.memory.arrays["taps"][8 * count : 12 * count].cpu().numpy().view(np.int32) & jpegs.DAMAGED


@dataclass
class Loaded:
    """The records of some payloads in a slot."""

    slot: jpegs.Slot
    files: np.ndarray
    used: int
    status: np.ndarray


def loaded(machine: Machine, source: Payloads, slot: jpegs.Slot | None = None, context: Any = None) -> Loaded:
    count = len(source.fds)
    places = jpegs.room(source.lengths)
    slot = slot or jpegs.Slot(machine.device, count, int(places[-1]))
    files, status = np.zeros(count, jpegs.FILE), np.zeros(count, np.int32)
    jpegs.read(context or kernel.Context(OPTIONS), source, slot.arena, places, machine.tables, files, status, 0, count)
    return Loaded(slot, files, int(places[-1]), status)


def by_kernel(source: Payloads, boxes: np.ndarray, flips: np.ndarray, out: np.ndarray, pool: ThreadPoolExecutor, cores: int) -> None:
    """The CPU kernel's pixels."""
    count, status = len(boxes), np.zeros(len(boxes), np.int32)
    edges = np.linspace(0, count, cores + 1).astype(int)

    def rows(part: int) -> None:
        kernel.decode_batch(kernel.Context(OPTIONS), source, boxes, flips, out, status, int(edges[part]), int(edges[part + 1]))

    list(pool.map(rows, range(cores)))
    assert not status.any(), f"the kernel refused {status.nonzero()[0]}"


def normalised(pixels: np.ndarray, kind: str) -> np.ndarray:
    """The values of a batch as bits: float32, or rounded to bfloat16."""
    values = pixels.astype(np.float32) * SCALE[0] + SCALE[1]
    bits = values.view(np.uint32)
    if kind == "float32":
        return bits
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def equality(report: Report, data: Packed, machine: Machine | None, count: int) -> None:
    """Compare `count` crops with the kernel's, and one batch in each type."""
    rng, fd, cores = np.random.default_rng(1), os.open(data.path, os.O_RDONLY), os.cpu_count() or 1
    size, done, refused, damaged, wrong = min(256, count), 0, 0, 0, 0
    expected, at_kernel = np.empty((size, SIDE, SIDE, 3), np.uint8), 0.0
    with ThreadPoolExecutor(cores) as pool:
        while done < count:
            chosen = rng.integers(0, len(data.lengths), size)
            source, (boxes, flips) = data.source(chosen, fd), crops(rng, data.sizes[chosen])
            begun = time.monotonic()
            by_kernel(source, boxes, flips, expected, pool, cores)
            at_kernel += time.monotonic() - begun
            if machine is None:
                found = np.empty_like(expected)
                status = jpegs.run_on_host(source, boxes, flips, OPTIONS, wanted("uint8"), found)
            else:
                with machine.torch.cuda.stream(machine.stream):
                    batch = loaded(machine, source)
                    out = machine.torch.zeros(expected.shape, dtype=machine.torch.uint8, device=machine.device)
                    machine.start(batch.slot, batch.files, boxes, flips, wanted("uint8"), out, batch.used)
                    found = out.cpu().numpy()
                    status = np.where(batch.slot.images["refused"], -1, machine.damaged(size))
            differ = np.flatnonzero((found != expected).any((1, 2, 3)) & (status == 0))
            refused, damaged, wrong, done = refused + int((status < 0).sum()), damaged + int((status > 0).sum()), wrong + len(differ), done + size
            if len(differ):
                stages = diagnosed(machine, source, boxes, flips) if machine else {}
                report.add("FIRST DIFFERENCE", {"crop": int(differ[0]), "box": boxes[differ[0]].tolist(), **stages})
                break
    report.add("crops compared", done)
    report.add("crops that differ", wrong)
    report.add("refused, found damaged", (refused, damaged))
    report.add("kernel on all cores while comparing, images/s", round(done / at_kernel))
    for kind, last in itertools.product(("bfloat16", "float32"), (True, False)) if machine else ():
        with machine.torch.cuda.stream(machine.stream):
            type_ = wanted(kind, last)
            out = machine.torch.zeros(size * 3 * SIDE * SIDE * WIDTH[kind], dtype=machine.torch.uint8, device=machine.device)
            machine.start(batch.slot, batch.files, boxes, flips, type_, out, batch.used)
            bits = out.cpu().numpy().view(np.uint16 if kind == "bfloat16" else np.uint32)
            shape = (size, SIDE, SIDE, 3) if last else (size, 3, SIDE, SIDE)
            found = bits.reshape(shape) if last else bits.reshape(shape).transpose(0, 2, 3, 1)
        report.add(f"{kind}, channels {'last' if last else 'first'}: values that differ", int((found != normalised(expected, kind)).sum()))
    os.close(fd)


def hostile(report: Report, data: Packed, machine: Machine | None, count: int) -> None:
    """Files with flipped bits: what passes has the kernel's pixels."""
    rng, whole = np.random.default_rng(5), np.fromfile(data.path, np.uint8)
    passed = wrong = 0
    for _ in range(0, count, 64):
        chosen = rng.integers(0, len(data.lengths), 64)
        files = [whole[int(data.offsets[row]) : int(data.offsets[row] + data.lengths[row])].copy() for row in chosen]
        for each in files:
            for place in rng.integers(20 if rng.random() < 0.2 else 640, len(each), rng.integers(1, 4)):
                each[place] ^= 1 << rng.integers(8)
        source = Payloads(
            np.full(64, -1, np.int32), np.array([each.ctypes.data for each in files], np.uint64),
            np.array([len(each) for each in files], np.uint64), None, np.ones(64, np.uint8), None,
        )  # fmt: skip
        boxes, flips = crops(rng, data.sizes[chosen])
        expected, status = np.zeros((64, SIDE, SIDE, 3), np.uint8), np.zeros(64, np.int32)
        kernel.decode_batch(kernel.Context(OPTIONS), source, boxes, flips, expected, status, 0, 64)
        if machine is None:
            found = np.zeros_like(expected)
            mine = jpegs.run_on_host(source, boxes, flips, OPTIONS, wanted("uint8"), found)
        else:
            with machine.torch.cuda.stream(machine.stream):
                batch = loaded(machine, source)
                out = machine.torch.zeros(expected.shape, dtype=machine.torch.uint8, device=machine.device)
                machine.start(batch.slot, batch.files, boxes, flips, wanted("uint8"), out, batch.used)
                found = out.cpu().numpy()
                mine = np.where(batch.slot.images["refused"], -1, machine.damaged(64))
        passed += int((mine == 0).sum())
        wrong += int(((found != expected).any((1, 2, 3)) | (status != 0))[mine == 0].sum())
    report.add("damaged files: tried, passed by the device, of them wrong", (count // 64 * 64, passed, wrong))


def diagnosed(machine: Machine, source: Payloads, boxes: np.ndarray, flips: np.ndarray) -> dict[str, Any]:
    """The number of bytes that differ between the device's memory and the host build's, stage by stage."""
    count, host = len(boxes), jpegs.HostMemory()
    places, files, images = jpegs.room(source.lengths), np.zeros(count, jpegs.FILE), np.zeros(count, jpegs.IMAGE)
    status = np.zeros(count, np.int32)
    host.reserve("jpegs", int(places[-1]) + jpegs.OVERREAD)
    jpegs.read(kernel.Context(OPTIONS), source, host.arrays["jpegs"], places, machine.tables, files, status, 0, count)
    type_ = wanted("uint8")
    out = np.zeros((count, SIDE, SIDE, 3), np.uint8)
    work = jpegs.prepare(host, type_, count, jpegs.place(files, boxes, flips, source.orientations, images, OPTIONS, type_.size))
    jpegs.clear(host, work)
    work.batch["images"], work.batch["jpegs"] = images.ctypes.data, host.arrays["jpegs"].ctypes.data
    work.batch["codes"], work.batch["out"] = machine.tables.ctypes.data + jpegs.CODES, out.ctypes.data
    found = {}
    for stage, name in enumerate(("taps", "weights", "coefs", "samples", "pixels")):
        jpegs._native.device_run(work.batch, stage)
        mine = host.arrays[name]
        if name == "taps":
            mine = mine[: 8 * count]
        theirs = machine.memory.arrays[name][: mine.size].cpu().numpy()
        found[f"{jpegs.STAGES[stage]}: bytes of {name} that differ"] = int((mine != theirs).sum())
    return found


def timed(machine: Machine, run: Callable[[], None], least: float = 0.3) -> float:
    """Milliseconds of a call on the device: the median of samples of ten."""
    torch, samples, end = machine.torch, [], time.monotonic() + least
    for _ in range(3):
        run()
    while time.monotonic() < end or len(samples) < 5:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(10):
            run()
        stop.record()
        stop.synchronize()
        samples.append(start.elapsed_time(stop) / 10)
    return float(np.median(samples))


def alone(report: Report, data: Packed, machine: Machine, count: int, kind: str, last: bool) -> None:
    """Decoder and finishing of batches in device memory."""
    rng, fd = np.random.default_rng(2), os.open(data.path, os.O_RDONLY)
    with machine.torch.cuda.stream(machine.stream):
        out = machine.torch.empty(count * 3 * SIDE * SIDE * WIDTH[kind], dtype=machine.torch.uint8, device=machine.device)
        batches = []
        for _ in range(2):
            chosen = rng.integers(0, len(data.lengths), count)
            batch, (boxes, flips) = loaded(machine, data.source(chosen, fd)), crops(rng, data.sizes[chosen])
            machine.start(batch.slot, batch.files, boxes, flips, wanted(kind, last), out, batch.used)  # grows the memory
            batches.append((batch, boxes, flips))
        works = [
            machine.start(batch.slot, batch.files, boxes, flips, wanted(kind, last), out, batch.used) for batch, boxes, flips in batches
        ]
        turns = itertools.cycle(range(2))

        def whole() -> None:
            turn = next(turns)
            machine.launch(batches[turn][0].slot, works[turn])

        name = f"{count} images, {kind}, channels {'last' if last else 'first'}"
        each = timed(machine, whole)
        report.add(f"alone, {name}: images/s", round(count / each * 1e3))
        stages = {"zeroing": round(1e3 * timed(machine, lambda: jpegs.clear(machine.memory, works[0]), 0.1))}
        slot, stream = batches[0][0].slot, machine.torch.cuda.current_stream().cuda_stream
        machine.launch(slot, works[0])
        for number, stage in enumerate(jpegs.STAGES):

            def one(number: int = number) -> None:
                jpegs.launch(machine.kernels, works[0], slot.address, stream, range(number, number + 1))

            stages[stage] = round(1e3 * timed(machine, one, 0.1))
        report.add(f"alone, {name}: µs of each stage", stages)
    os.close(fd)


class Cpu:
    """Wall time and the process's time on cores."""

    def __init__(self) -> None:
        self.wall, self.cores = time.monotonic(), time.process_time()

    def used(self) -> tuple[float, float]:
        wall = time.monotonic() - self.wall
        return wall, (time.process_time() - self.cores) / wall


def resident(report: Report, data: Packed, machine: Machine, count: int, seconds: float) -> None:
    """JPEGs kept in device memory: the host only draws boxes and places the work."""
    torch, fd = machine.torch, os.open(data.path, os.O_RDONLY)
    rng, every = np.random.default_rng(3), np.arange(len(data.lengths))
    with torch.cuda.stream(machine.stream):
        whole = loaded(machine, data.source(every, fd))
        block = torch.zeros(whole.used + 2 * jpegs.OVERREAD, dtype=torch.uint8, device=machine.device)
        block[: whole.used].copy_(torch.from_numpy(whole.slot.arena[: whole.used]))
        slots = [(jpegs.Slot(machine.device, count), torch.cuda.Event(blocking=True)) for _ in range(3)]
        out = torch.empty((count, SIDE, SIDE, 3), dtype=torch.bfloat16, device=machine.device)
        kind = wanted("bfloat16")
        good = every[whole.status == 0]
        images, cpu = 0, Cpu()
        for turn in itertools.count():
            if turn == 20:  # the first ones grow the memory
                torch.cuda.synchronize()
                images, cpu = 0, Cpu()
            if turn > 20 and time.monotonic() - cpu.wall > seconds:
                break
            slot, free = slots[turn % len(slots)]
            if turn >= len(slots):
                free.synchronize()
            chosen = good[rng.integers(0, len(good), count)]
            boxes, flips = crops(rng, data.sizes[chosen])
            machine.start(slot, whole.files[chosen], boxes, flips, kind, out, 0, int(block.data_ptr()))
            free.record()
            images += count
        torch.cuda.synchronize()
        wall, cores = cpu.used()
        expected = np.empty((count, SIDE, SIDE, 3), np.uint8)
        with ThreadPoolExecutor() as pool:
            by_kernel(data.source(chosen, fd), boxes, flips, expected, pool, os.cpu_count() or 1)
        found = out.view(torch.int16).cpu().numpy().view(np.uint16)
        differ = (found != normalised(expected, "bfloat16")).any((1, 2, 3))
        report.add(f"JPEGs in device memory, batches of {count}: images of the last batch that differ, refused", (int((differ & ~slot.images["refused"].astype(bool)).sum()), int(slot.images["refused"].sum())))
    report.add(f"JPEGs in device memory, batches of {count}: images/s", round(images / wall))
    report.add(f"JPEGs in device memory, batches of {count}: host cores, of them for 300,000 images/s", (round(cores, 2), round(cores * 3e5 * wall / images, 2)))
    os.close(fd)


def from_cache(report: Report, data: Packed, machine: Machine, count: int, seconds: float, cores: int) -> None:
    """End to end from the page cache: `cores` threads on as many cores read, place and launch whole batches."""
    torch, fd = machine.torch, os.open(data.path, os.O_RDONLY)
    kind, arena = wanted("bfloat16"), int(jpegs.room(np.full(count, data.lengths.max()))[-1])
    out = torch.empty((count, SIDE, SIDE, 3), dtype=torch.bfloat16, device=machine.device)
    before = os.sched_getaffinity(0)
    images, stop, warm = [0] * cores, threading.Event(), threading.Barrier(cores + 1)

    def work(number: int) -> None:
        rng, context = np.random.default_rng((4, number)), kernel.Context(OPTIONS)
        slots = [(jpegs.Slot(machine.device, count, arena), torch.cuda.Event(blocking=True)) for _ in range(2)]
        for turn in itertools.count():
            if turn == 6:
                warm.wait()
                images[number] = 0
            if stop.is_set():
                return torch.cuda.synchronize()  # before the slots' memory is another's
            slot, free = slots[turn % 2]
            if turn >= 2:
                free.synchronize()
            chosen = rng.integers(0, len(data.lengths), count)
            batch, (boxes, flips) = loaded(machine, data.source(chosen, fd), slot, context), crops(rng, data.sizes[chosen])
            with machine.lock, torch.cuda.stream(machine.stream):
                machine.start(slot, batch.files, boxes, flips, kind, out, batch.used)
                free.record()
            images[number] += count

    try:
        os.sched_setaffinity(0, set(sorted(before)[:cores]))
        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(cores)]
        for thread in threads:
            thread.start()
        warm.wait(60)
        cpu = Cpu()
        time.sleep(seconds)
        torch.cuda.synchronize()
        wall, used = cpu.used()
        total = sum(images)
        stop.set()
        for thread in threads:
            thread.join(20)
    finally:
        os.sched_setaffinity(0, before)
    report.add(f"from the page cache, batches of {count}, {cores} cores: images/s", round(total / wall))
    report.add(f"from the page cache, batches of {count}, {cores} cores: cores used", round(used, 2))
    os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(os.environ.get("OUT", "device-decode")))
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--pixels", action="store_true", help="compare pixels only, as under compute-sanitizer")
    parser.add_argument("--packed", type=Path)
    parser.add_argument("--save", type=Path, metavar="PHOTOGRAPHS", help="pack a folder's photographs into --packed, and end")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--crops", type=int, default=10240)
    parser.add_argument("--seconds", type=float, default=4)
    args = parser.parse_args()
    if args.save:
        return save(args.save, args.packed, args.images)
    report = Report(args.folder)
    with tempfile.TemporaryDirectory() as folder:
        if args.host:
            args.images, args.crops = min(args.images, 16), min(args.crops, 32)
        data = packed(args, Path(folder))
        report.add("packed JPEGs, bytes each", (len(data.lengths), round(float(data.lengths.mean()))))
        report.add("kernel", kernel.describe())
        if args.host:
            report.part("equality", lambda: equality(report, data, None, args.crops))
            return report.part("hostile", lambda: hostile(report, data, None, 64))
        machine = Machine()
        report.add("device", f"{machine.torch.cuda.get_device_name(0)}, {os.cpu_count()} cores, torch {machine.torch.__version__}")
        report.add("compiled by", machine.compiler)
        report.part("equality", lambda: equality(report, data, machine, args.crops))
        report.part("hostile", lambda: hostile(report, data, machine, min(args.crops, 1024)))
        if args.pixels:
            return None
        for count, kind, last in ((256, "bfloat16", True), (1024, "bfloat16", True), (256, "bfloat16", False), (256, "uint8", True)):
            report.part("alone", lambda count=count, kind=kind, last=last: alone(report, data, machine, count, kind, last))
        for count in (256, 1024):
            report.part("resident", lambda count=count: resident(report, data, machine, count, args.seconds))
            for cores in (2, 8):
                report.part("cache", lambda count=count, cores=cores: from_cache(report, data, machine, count, args.seconds, cores))
    return None


if __name__ == "__main__":
    main()
