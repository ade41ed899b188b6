"""Measure how fast a dataset loads on this machine: microseconds per image by stage, and images per second beside full
decode, by number of workers.

examples:
  iofast bench out.lmdb                         with RandomResizedCrop(224) + flip, 1 worker up to one per core
  iofast bench ./images --workers 1,2,4,8       a plain folder
  iofast bench out.lmdb --transform evaluate    Resize(256) + CenterCrop(224)
  iofast bench out.lmdb --device cuda           onto a GPU, and how much longer a step of 5 ms takes beside the loader
  iofast bench out.lmdb --json | jq .loading    for programs

"full decode" is libjpeg-turbo decoding the same images whole with as many threads, without reading: the upper bound
of loaders that decode first and crop afterwards. Run it on an idle machine: a line names other programs that use cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from iofast import transforms as T
from iofast.commands.shared import add_output, count, table
from iofast.errors import plain
from iofast.machine import cores
from iofast.monitor.probe import states
from iofast.monitor.probe.machine_facts import SystemProbe
from iofast.monitor.snapshot import Job, SystemFigures

if TYPE_CHECKING:
    from iofast.bench import BenchResult

STEP_MS = 5.0
_NOTICED = 0.1  # of the cores, used by other programs

_STAGES = {
    "read": "read the payload from the file",
    "check": "its checksum",
    "scan": "header, restart markers",
    "splice": "smaller file of the segments needed",
    "entropy": "Huffman codes to coefficients",
    "transform": "inverse DCT",
    "colour": "upsampling, colour conversion, unpacking",
    "libjpeg": "decoding by libjpeg-turbo",
    "axes": "weights of the resampling",
    "resample": "resampling, and the store into the batch",
}
_WAYS = {
    "segments": "only the restart segments that the crop touches",
    "rows": "without restart markers: `iofast pack` writes them",
    "splice": "libjpeg-turbo, on the segments that the crop touches",
    "libjpeg": "libjpeg-turbo: progressive, or of an unusual kind",
    "raw": "raw pixels: nothing to decode",
    "png": "PNG, by libdeflate or zlib",
    "webp": "WebP, by libwebp",
    "pillow": "Pillow: another format",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("path", metavar="PATH", help="a container such as out.lmdb, or a folder of images")
    add("--split", help="the split, if there are several; all = their union")
    add("--transform", choices=("train", "evaluate"), default="train", help="the transform (default: train)")
    add("--size", type=int, default=224, metavar="N", help="side of the transformed images in pixels (default: 224)")
    add("--workers", type=_numbers, metavar="N,N", help="numbers of threads to try (default: 1, 2, 4 … cores)")
    add("--batch-size", type=int, default=256, metavar="N", help="images in a batch (default: 256)")
    add("--images", type=int, default=2048, metavar="N", help="images to measure with (default: 2048)")
    add("--seconds", type=float, default=10.0, metavar="S", help="time for all rounds (default: 10)")
    add("--device", default="cpu", metavar="DEVICE", help="where batches go, such as cuda (default: cpu)")
    add("--step", type=float, metavar="MS", help="a step to run beside the loader (default: 5 with a GPU)")
    add("--pixels", choices=("exact", "fast"), default="exact", help="as FastLoader's (default: exact)")
    add_output(parser, quiet="print images/s only, one line for each number of workers")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from iofast.bench import BenchOptions, bench  # here, with torch
    from iofast.dataset import FastDataset

    preset = T.train(args.size) if args.transform == "train" else T.evaluate(args.size)
    transform = [step for step in preset if not isinstance(step, T.Normalize)]  # the batch is uint8
    options = BenchOptions(
        images=args.images,
        seconds=args.seconds,
        batch_size=args.batch_size,
        workers=args.workers or _default_workers(),
        pixels=args.pixels,
        device=args.device,
        step_ms=STEP_MS if args.step is None and args.device != "cpu" and not args.quiet else args.step,
    )
    seen = (states.PROC / "stat").exists()  # not in some sandboxes
    machine, since = SystemProbe(Job(os.getpid(), 0, ""), scan_s=0.0) if seen else None, time.monotonic()
    result = bench(FastDataset(args.path, args.split), transform, options)
    meanwhile = machine.take(time.monotonic() - since) if machine else None
    if args.json:
        facts = {"version": 1, "path": args.path, "transform": args.transform, **asdict(result)}
        if result.beside is not None:
            facts["beside"] |= {"interference": result.beside.interference}
        print(json.dumps(facts | {"other_cores": meanwhile and meanwhile.other_cores}))
    elif args.quiet:
        print("\n".join(f"{rate:.0f}" for rate in result.loading.values()))
    else:
        _show(args, result)
    if meanwhile is not None:
        _note_others(meanwhile)
    return 0


def _note_others(meanwhile: SystemFigures) -> None:
    """Name the cores that other programs used, if that changes the rates."""
    others, cores = meanwhile.other_cores or 0.0, meanwhile.cores
    if others < _NOTICED * cores:
        return
    who = "" if meanwhile.busiest is None else f" ({meanwhile.busiest})"
    text = f"other programs used {others:.1f} of {cores:g} cores meanwhile{who}: measure again on an idle machine"
    print(f"iofast bench: {text}", file=sys.stderr)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers such as 1,2,4, found {text!r}") from None


def _default_workers() -> tuple[int, ...]:
    powers = {1 << power for power in range(10) if 1 << power < cores()}
    return tuple(sorted(powers | {cores()}))


def _show(args: argparse.Namespace, result: BenchResult) -> None:
    console = Console(highlight=False)
    title = f"{args.path}: {count(result.images, 'image')}, {args.transform} at {args.size} pixels"
    console.print(Text(plain(f"{title}, {count(result.rounds, 'round')}"), "bold"))
    if total := sum(result.stages.values()):
        rows = [(name, f"{us:,.1f}", f"{us / total:.0%}", _STAGES[name]) for name, us in result.stages.items() if us]
        stages = table(("stage", "µs per image", "", ""), rows, right=(1, 2))
        stages.add_row("all", f"{total:,.1f}", "", "of one thread, without the loader", style="bold")
        console.print(stages, "")
    ways = [(name, f"{number:,}", _WAYS[name]) for name, number in result.ways.items() if number]
    console.print(table(("decoded", "images", ""), ways, right=(1,)), "")
    rates = [
        (str(workers), f"{rate:,.0f}", *((f"{full:,.0f}", f"{rate / full:.2f} times") if full else ("", "")))
        for workers, rate, full in zip(result.loading, result.loading.values(), result.decoding.values(), strict=True)
    ]
    console.print(table(("workers", "images/s", "full decode", ""), rates, right=(0, 1, 2)))
    if (beside := result.beside) is not None:
        console.print()
        lasts = f"a step of {1e3 * beside.step_s:.2f} ms takes {1e3 * beside.beside_s:.2f} ms beside the loader"
        parts = (
            f"{beside.stall:.1%} of that it waits for a batch, and itself it takes {beside.interference:+.1%} longer"
        )
        console.print(Text(plain(f"{args.device}: {lasts}: {parts} ({count(round(beside.images), 'image')}/s)")))
