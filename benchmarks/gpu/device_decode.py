"""The decoder of iofast/gpu/jpegs.py on a GPU: first whether its pixels are the kernel's, then its speed.

    python -m benchmarks.gpu.device_decode [--host] [--packed FILE]… [--crops 10240] [--seconds 5] [FOLDER]

Results go to FOLDER ($OUT, or device-decode) as device_decode.json and device_decode.md, after each part. `--packed`
are .npz files of JPEGs: the first made by `--save`, and others whose pixels are only compared; without it photographs
are made and packed here. `--host` needs no GPU: the host's build decodes some crops.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.device_machine import (
    OPTIONS,
    SIDE,
    WIDTH,
    Loaded,
    Machine,
    Packed,
    Report,
    by_kernel,
    crops,
    loaded,
    normalised,
    packed,
    save,
    wanted,
)
from benchmarks.gpu.device_pixels import Compared, equality, hostile, types
from iofast import kernel
from iofast.gpu import jpegs
from iofast.kernel import Payloads


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
        out = machine.torch.empty(
            count * 3 * SIDE * SIDE * WIDTH[kind], dtype=machine.torch.uint8, device=machine.device
        )
        type_, batches = wanted(kind, last), []
        for _ in range(2):
            chosen = rng.integers(0, len(data.lengths), count)
            batches.append((loaded(machine, data.source(chosen, fd)), crops(rng, data.sizes[chosen])))
            machine.start(*batches[-1], type_, out)  # grows the memory
        works = [machine.start(batch, drawn, type_, out) for batch, drawn in batches]
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


def unlike(source: Payloads, drawn: jpegs.Crops, out: Any) -> np.ndarray:
    """Which images of a bfloat16 batch do not have the kernel's pixels."""
    expected = np.empty(out.shape, np.uint8)
    with ThreadPoolExecutor() as pool:
        by_kernel(source, drawn, expected, pool, os.cpu_count() or 1)
    found = out.float().cpu().numpy().view(np.uint32) >> 16
    return (found != normalised(expected, "bfloat16")).any((1, 2, 3))


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
        good = every[whole.files["restart"] > 0]
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
            drawn = crops(rng, data.sizes[chosen])
            machine.start(Loaded(slot, whole.files[chosen], resident=int(block.data_ptr())), drawn, kind, out)
            free.record()
            images += count
        torch.cuda.synchronize()
        wall, cores = cpu.used()
        differ = unlike(data.source(chosen, fd), drawn, out)
        report.add(
            f"JPEGs in device memory, batches of {count}: images of the last batch that differ, refused",
            (int((differ & ~slot.images["refused"].astype(bool)).sum()), int(slot.images["refused"].sum())),
        )
    report.add(f"JPEGs in device memory, batches of {count}: images/s", round(images / wall))
    report.add(
        f"JPEGs in device memory, batches of {count}: host cores, of them for 300,000 images/s",
        (round(cores, 2), round(cores * 3e5 * wall / images, 2)),
    )
    os.close(fd)


def from_cache(report: Report, data: Packed, machine: Machine, count: int, seconds: float, cores: int) -> None:
    """End to end from the page cache: `cores` threads on as many cores read, place and launch whole batches."""
    torch, fd = machine.torch, os.open(data.path, os.O_RDONLY)
    kind, arena = wanted("bfloat16"), int(jpegs.room(np.full(count, data.lengths.max()))[-1])
    out = torch.empty((count, SIDE, SIDE, 3), dtype=torch.bfloat16, device=machine.device)
    before = os.sched_getaffinity(0)
    last: list[Any] = []
    images, stop, warm = [0] * cores, threading.Event(), threading.Barrier(cores + 1)

    def work(number: int) -> None:
        rng, context = np.random.default_rng((4, number)), kernel.Context(OPTIONS)
        slots = [(jpegs.Slot(machine.device, count, arena), torch.cuda.Event(blocking=True)) for _ in range(2)]
        for turn in itertools.count():
            if turn == 6:
                warm.wait()
                images[number] = 0
            if stop.is_set():
                torch.cuda.synchronize()  # before the slots' memory is another's
                return
            slot, free = slots[turn % 2]
            if turn >= 2:
                free.synchronize()
            chosen = rng.integers(0, len(data.lengths), count)
            batch, drawn = loaded(machine, data.source(chosen, fd), slot, context), crops(rng, data.sizes[chosen])
            with machine.lock, torch.cuda.stream(machine.stream):
                machine.start(batch, drawn, kind, out)
                free.record()
                last[:] = data.source(chosen, fd), drawn
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
    torch.cuda.synchronize()
    report.add(
        f"from the page cache, batches of {count}, {cores} cores: images of the last batch that differ",
        int(unlike(*last, out).sum()),
    )
    report.add(f"from the page cache, batches of {count}, {cores} cores: images/s", round(total / wall))
    report.add(f"from the page cache, batches of {count}, {cores} cores: cores used", round(used, 2))
    os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(os.environ.get("OUT", "device-decode")))
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--pixels", action="store_true", help="compare pixels only, as under compute-sanitizer")
    parser.add_argument("--packed", type=Path, action="append", default=[])
    parser.add_argument(
        "--save", type=Path, metavar="PHOTOGRAPHS", help="pack a folder's photographs into --packed, and end"
    )
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--crops", type=int, default=10240)
    parser.add_argument("--seconds", type=float, default=4)
    args = parser.parse_args()
    if args.save:
        return save(args.save, args.packed[0], args.images)
    report = Report(args.folder)
    with tempfile.TemporaryDirectory() as folder:
        if args.host:
            args.images, args.crops = min(args.images, 16), min(args.crops, 32)
        sets = [packed(given, args.images, Path(folder)) for given in args.packed or [None]]
        data = sets[0]
        report.add(
            "packed JPEGs, bytes each", [(len(each.lengths), round(float(each.lengths.mean()))) for each in sets]
        )
        report.add("kernel", kernel.describe())
        machine = None if args.host else Machine()
        if machine:
            report.add(
                "device",
                f"{machine.torch.cuda.get_device_name(0)}, {os.cpu_count()} cores, torch {machine.torch.__version__}",
            )
            report.add("compiled by", machine.compiler)
        report.part("equality", lambda: equality(report, machine, Compared(data, args.crops)))
        report.part("hostile", lambda: hostile(report, data, machine, min(args.crops, 1024) if machine else 64))
        report.part("varied", lambda: equality(report, machine, Compared(data, args.crops // 4, 61, varied=True)))
        for each in sets[1:]:
            report.part(
                "others", lambda each=each: equality(report, machine, Compared(each, args.crops // 2, 24, varied=True))
            )
        if machine is None:
            return None
        report.part("types", lambda: types(report, data, machine))
        if args.pixels:
            return None
        for count, kind, last in (
            (256, "bfloat16", True),
            (1024, "bfloat16", True),
            (256, "bfloat16", False),
            (256, "uint8", True),
        ):
            report.part(
                "alone", lambda count=count, kind=kind, last=last: alone(report, data, machine, count, kind, last)
            )
        for count in (256, 1024):
            report.part("resident", lambda count=count: resident(report, data, machine, count, args.seconds))
            for cores in (2, 8):
                report.part(
                    "cache",
                    lambda count=count, cores=cores: from_cache(report, data, machine, count, args.seconds, cores),
                )
    return None


if __name__ == "__main__":
    main()
