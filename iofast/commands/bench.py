"""`iofast bench`: how fast this dataset loads on this machine, and what the time goes into."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iofast.bench import BenchResult

VERSION = 1  # of the JSON

_EXAMPLES = """\
examples:
  iofast bench out.lmdb                         with RandomResizedCrop(224) + flip, 1 worker up to one per core
  iofast bench ./images --workers 1,2,4,8       a plain folder
  iofast bench out.lmdb --transform evaluate    Resize(256) + CenterCrop(224)
  iofast bench out.lmdb --json | jq .loading    for programs

"full decode" is libjpeg-turbo decoding the same images whole, with as many threads, by the clock around that alone:
what loaders that decode first and crop afterwards cannot exceed. Run it while the machine does nothing else.
"""
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
    "pillow": "Pillow: not a JPEG, or no native kernel",
}


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure how fast a dataset loads here",
        description="Measure how fast this dataset loads on this machine: microseconds per image by stage, and "
        "images a second beside full decode, by number of workers.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("path", metavar="PATH", help="a container such as out.lmdb, or a folder of images")
    add("--split", help="which split, where there are several; all = their union")
    add("--transform", choices=("train", "evaluate"), default="train", help="what is done to images (default: train)")
    add("--size", type=int, default=224, metavar="N", help="pixels of a side of what comes out (default: 224)")
    add("--workers", type=_numbers, metavar="N,N", help="numbers of threads to try (default: 1, 2, 4 … cores)")
    add("--batch-size", type=int, default=256, metavar="N", help="images in a batch (default: 256)")
    add("--images", type=int, default=2048, metavar="N", help="images to measure with (default: 2048)")
    add("--seconds", type=float, default=10.0, metavar="S", help="how long the rounds go on (default: 10)")
    add("--pixels", choices=("exact", "fast"), default="exact", help="as FastLoader's (default: exact)")
    add("--json", action="store_true", help="print JSON")
    add("--quiet", action="store_true", help="print images/s only, one line for each number of workers")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from iofast import transforms as T
    from iofast.bench import BenchOptions, bench
    from iofast.dataset import FastDataset
    from iofast.errors import OptionError

    if args.size < 1:
        raise OptionError(f"--size must be 1 or more, found {args.size}")
    preset = T.train(args.size) if args.transform == "train" else T.evaluate(args.size)
    transform = [step for step in preset if not isinstance(step, T.Normalize)]  # the batch is uint8
    options = BenchOptions(
        images=args.images,
        seconds=args.seconds,
        batch_size=args.batch_size,
        workers=args.workers or _default_workers(),
        pixels=args.pixels,
    )
    result = bench(FastDataset(args.path, args.split), transform, options)
    if args.json:
        print(json.dumps({"version": VERSION, "path": args.path, "transform": args.transform, **asdict(result)}))
    elif args.quiet:
        print("\n".join(f"{rate:.0f}" for rate in result.loading.values()))
    else:
        _show(args, result)
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers such as 1,2,4, found {text!r}") from None


def _default_workers() -> tuple[int, ...]:
    from iofast.machine import cores

    doubled = {1 << power for power in range(10) if 1 << power < cores()}
    return tuple(sorted(doubled | {cores()}))


def _show(args: argparse.Namespace, result: BenchResult) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from iofast.commands.text import count
    from iofast.errors import plain

    console = Console(highlight=False)
    what = f"{args.path}: {count(result.images, 'image')}, {args.transform} at {args.size} pixels"
    console.print(Text(plain(f"{what}, {count(result.rounds, 'round')}"), "bold"))
    stages = Table("stage", "µs per image", "", "", box=None, pad_edge=False, header_style="bold")
    stages.columns[1].justify = stages.columns[2].justify = "right"
    total = sum(result.stages.values())
    for name, spent in result.stages.items():
        if spent:
            stages.add_row(name, f"{spent:,.1f}", f"{spent / total:.0%}", _STAGES[name])
    if total:
        stages.add_row("all", f"{total:,.1f}", "", "of one thread, without the loader", style="bold")
        console.print(stages)
        console.print()
    ways = Table("decoded", "images", "", box=None, pad_edge=False, header_style="bold")
    ways.columns[1].justify = "right"
    for name, number in result.ways.items():
        if number:
            ways.add_row(name, f"{number:,}", _WAYS[name])
    console.print(ways)
    console.print()
    rates = Table("workers", "images/s", "full decode", "", box=None, pad_edge=False, header_style="bold")
    for column in rates.columns[:3]:
        column.justify = "right"
    for workers, rate in result.loading.items():
        full = result.decoding[workers]
        beside = (f"{full:,.0f}", f"{rate / full:.2f} times") if full else ("", "")
        rates.add_row(str(workers), f"{rate:,.0f}", *beside)
    console.print(rates)
