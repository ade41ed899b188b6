"""`iofast pack`: a folder of images, a manifest, or another container into one container."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from iofast.commands import foreign

if TYPE_CHECKING:
    from iofast.packing.pool import WorkerPool
    from iofast.packing.report import PackReport

_EXAMPLES = """\
examples:
  iofast pack ./images out.lmdb --resize 256
      short side 256 pixels, JPEG quality 90; class folders become labels
  iofast pack ./images out.lmdb
      JPEG, PNG and WebP files byte by byte; others (BMP, TIFF, GIF) become PNGs: first picture, opaque, 8 bits
  iofast pack ./images out.lmdb --resize 224 --mode crop --format webp
      centre squares of 224 x 224
  iofast pack ./images out.lmdb --resize 256 --format yuv420
      raw pixels, which no loader has to decode: about five times the size of JPEG
  iofast pack list.csv out.lmdb --resize 256 --shuffle 1
      the images that a manifest (path, label, ...) names, in a fixed random order
  iofast pack ./images out.lmdb --resize 640 --mode pad --fields seg.png,json=boxes.json --boxes boxes.json
      640 x 640, with the masks and boxes that lie beside the images
  iofast pack 'originals-{000000..000099}.tar' small.lmdb --resize 256
      WebDataset's shards; likewise TFRecords, LMDB, MDS, beton, and what iofast packed before
  iofast pack ./images out.lmdb --resize 256 --min-size 64 --max-aspect 4
      without small and extremely long images
  iofast pack ./images shards/train.tar --resize 256 --shard-size 500MB
      WebDataset's tar shards: train-000000.tar, train-000001.tar, ...
  iofast pack ./images shards/train.tfrecord --resize 256
      TFRecord: train-00000-of-00016.tfrecord, ...
  iofast pack ./images out.lmdb --resize 256 --split val=0.1,test=0.05 --split-seed 1
      a tenth of the images for validation, a twentieth for testing, the rest for training
  iofast pack ./more out.lmdb --resize 256 --append
      add to what is there; new classes come last
  iofast pack ./images out.lmdb --resize 256 --drop-duplicates
      of images that are equal, keep the first
  iofast pack ./images out.lmdb --resize 256 --dry-run
      transcode a sample, write nothing, estimate size and time

A run that was cut short goes on where it stopped: give the same command again.
Images that cannot be packed are listed in DST.errors.jsonl.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "pack",
        help="pack a folder of images into one file, or shards",
        description="Pack a folder of images, those that a manifest names, or those of another container, into LMDB, "
        "tar or TFRecord.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # an option that is not given takes PackOptions' default
    )
    parser.add_argument(
        "source", metavar="SRC", help="folder of images, manifest (.csv, .jsonl, .parquet), or container"
    )
    parser.add_argument("target", metavar="DST", help="what to make: out.lmdb, train.tar or train.tfrecord")
    _add_pixels(parser.add_argument_group("pixels"))
    _add_samples(parser.add_argument_group("samples"))
    _add_order(parser.add_argument_group("order"))
    _add_running(parser.add_argument_group("running"))
    parser.set_defaults(run=run)


def _add_pixels(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--resize", type=int, metavar="N", help="resize to N pixels; without it no size changes")
    group.add_argument("--mode", help="what N is: short (side, the default), long, exact, crop, pad, or none")
    group.add_argument("--only-shrink", action="store_true", help="leave images alone that would have to grow")
    group.add_argument("--filter", help="nearest, box, bilinear (the default), bicubic or lanczos; all antialiased")
    group.add_argument(
        "--format", help="jpeg (the default with --resize), png, webp, keep (the default without), or raw: rgb, yuv420"
    )
    group.add_argument("--quality", type=int, metavar="Q", help="of JPEG and WebP, 1 to 100 (default 90)")
    group.add_argument("--subsampling", help="of JPEG chroma: 420 (the default), 422 or 444")
    group.add_argument(
        "--restart",
        type=_restart,
        metavar="N",
        help="MCUs between a JPEG's restart markers, or none; auto is the default, but kept JPEGs are left as they are",
    )
    group.add_argument(
        "--reducing-gap",
        type=float,
        metavar="G",
        help="decode large JPEGs at a fraction that is still G times the wanted size (default 2; 0: in full)",
    )
    group.add_argument("--pad-color", metavar="COLOR", help="of --mode pad: black (the default), white, gray, #rrggbb")
    group.add_argument(
        "--icc",
        help="colour profiles: srgb converts (the default where an image is encoded), keep hands on, drop ignores",
    )
    group.add_argument(
        "--background", metavar="COLOR", help="under transparency (default white), or drop for the colours beneath it"
    )
    group.add_argument("--check", help="of files that are kept: decode (the default), or end: header and end only")
    group.add_argument("--max-pixels", type=int, metavar="N", help="larger images fail (default 268435456)")
    group.add_argument(
        "--max-memory", metavar="SIZE", help="images that would take more memory in a worker fail (default 2GiB)"
    )


def _add_samples(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--min-size", type=int, metavar="N", help="leave out images whose short side is below N pixels")
    group.add_argument(
        "--max-aspect", type=float, metavar="R", help="leave out images with long side over short above R"
    )
    group.add_argument(
        "--fields",
        metavar="SUFFIXES",
        help="files beside a.jpg that belong to it: seg.png,txt for a.seg.png and a.txt; of a container, which fields",
    )
    foreign.add_options(group)
    group.add_argument(
        "--mask-column", metavar="NAME", help="the manifest's column of mask files, which follow the image"
    )
    group.add_argument("--file-column", metavar="NAME", help="the manifest's column of other files, stored as they are")
    group.add_argument("--boxes", metavar="FIELD", help="the field of JSON whose boxes follow the image, as boxes.json")
    group.add_argument("--box-format", metavar="FORMAT", help="xyxy (the default) or xywh")
    group.add_argument("--keypoints", metavar="FIELD", help="the field of JSON whose keypoints follow the image")
    group.add_argument(
        "--upright-annotations",
        action="store_true",
        help="masks, boxes and keypoints were made on images turned by EXIF",
    )
    group.add_argument("--mask-fill", type=int, metavar="N", help="the masks' value beside a padded image (default 0)")


def _restart(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdecimal() else text  # PackOptions knows the words


class _Shares(argparse.Action):
    """One list of shares, of all that are given."""

    def __call__(self, _: object, namespace: argparse.Namespace, values: object, __: object = None) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if before is None else f"{before},{values}")


def _add_order(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--shuffle", type=int, metavar="SEED", help="permute each split; the same SEED, the same order")
    group.add_argument(
        "--split",
        action=_Shares,
        metavar="NAME=SHARE",
        help="draw splits, as in val=0.1,test=0.05; by the images' paths; the rest is train",
    )
    group.add_argument("--split-seed", type=int, metavar="N", help="another seed, other splits (default 0)")
    group.add_argument("--class-order", metavar="ORDER", help="lexicographic (the default), natural or file")
    for name in ("path", "label", "split"):
        group.add_argument(f"--{name}-column", metavar="NAME", help=f"the manifest's column of {name}s")


def _add_running(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--workers", type=int, metavar="N", help="processes (default: one per usable core)")
    group.add_argument(
        "--max-errors",
        metavar="N",
        help="stop when more images than this fail: a number or share (default 1%% or 10)",
    )
    sizes = group.add_mutually_exclusive_group()
    sizes.add_argument(
        "--shard-size", metavar="SIZE", help="about, of tar and TFRecord: 500MB, 1GiB or bytes (default 1GB)"
    )
    sizes.add_argument("--shard-records", type=int, metavar="N", help="records of a shard, in place of its size")
    group.add_argument(
        "--label-base",
        type=int,
        metavar="N",
        help="of TFRecord: 1 counts DST's classes from 1, as ImageNet's (default 0)",
    )
    group.add_argument("--drop-duplicates", action="store_true", help="of images that are equal, keep the first")
    group.add_argument(
        "--sidecars",
        metavar="NAME,…",
        help="dali, wids, timm: index files for other programs, beside shards",
    )
    group.add_argument("--append", action="store_true", help="add to DST, which must exist; with the same options")
    group.add_argument("--overwrite", action="store_true", help="replace DST where it exists")
    group.add_argument("--dry-run", action="store_true", help="write nothing; estimate size and time from a sample")
    group.add_argument("--json", action="store_true", default=False, help="print the report as JSON")
    group.add_argument("--quiet", action="store_true", default=False, help="no progress bar, no summary")


_OF_FOREIGN = ("names", "labels", "labels_from")
_NOT_OPTIONS = ("command", "run", "typed", "debug", "source", "target", "json", "quiet", *_OF_FOREIGN)


def run(args: argparse.Namespace) -> int:
    """Pack, print the summary or the JSON, and give the exit status."""
    from iofast.commands.text import say
    from iofast.machine import cores
    from iofast.packing.pool import WorkerPool

    given = vars(args).get("workers")
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # of NumPy's threads, which packing does not need and a fork not want
    with WorkerPool(cores() if given is None else given, fork=True) as pool:
        report = _pack(args, pool)
    if args.json:
        print(report.to_json())
    elif not args.quiet:
        say(*summary(report))
    return report.status


def _pack(args: argparse.Namespace, pool: WorkerPool) -> PackReport:
    from iofast.packing.options import PackOptions  # here, so that the workers' imports run beside these
    from iofast.packing.progress import Bar
    from iofast.packing.run import run as pack

    chosen = {name: value for name, value in vars(args).items() if name not in _NOT_OPTIONS}
    options = PackOptions(**chosen, foreign=foreign.given(args))
    bar = Bar("iofast pack", visible=not args.quiet, typed=args.typed)
    return pack(args.source, args.target, options, bar, pool)


def summary(report: PackReport) -> list[str]:
    """The lines that a finished run ends with."""
    from iofast.commands.text import count, duration, size

    if report.estimate is not None:
        return _forecast(report)
    lines = [f"packed {count(report.packed, 'image')} into {report.target}"]
    if report.held:
        lines[0] = f"added {count(report.packed, 'image')} to {report.target}, which held {report.held:,}"
    if report.resumed:
        lines.append(f"  resumed    {count(report.resumed, 'image')} were done already")
    lines += _contents(report)
    ratio = f", {report.bytes_out / report.bytes_in:.0%}" if report.bytes_in and not report.held else ""
    lines.append(f"  size       {size(report.bytes_in)} -> {size(report.bytes_out)}{ratio}")
    lines.append(
        f"  time       {duration(report.seconds)}, {report.images_per_second:,.0f} images/s, "
        f"{count(report.workers, 'worker')}"
    )
    if report.left_out:
        lines.append(f"  left out   {count(report.left_out, 'image')} by size or aspect")
    if report.duplicates:
        label = f", {report.other_label:,} of them under another label" if report.other_label else ""
        done = "left out" if report.dropped else "kept"
        lines.append(
            f"  duplicates {count(report.duplicates, 'image')} {done}, equal to earlier ones{label}: "
            f"{report.duplicates_file}"
        )
    if report.failed:
        lines.append(f"  failed     {count(report.failed, 'image')}, listed in {report.errors_file}")
        lines += [f"  {number:9,d}  {cause}" for cause, number in report.errors.items()]
    return lines + _notes(report)


def _notes(report: PackReport) -> list[str]:
    return [f"  note       {note}" for note in report.notes]


def _contents(report: PackReport) -> list[str]:
    lines = []
    if report.classes is not None:
        lines.append(f"  classes    {report.classes:,}")
    if set(report.splits) != {"all"}:
        lines.append("  splits     " + ", ".join(f"{name} {number:,}" for name, number in report.splits.items()))
    return lines


def _forecast(report: PackReport) -> list[str]:
    from iofast.commands.text import count, duration, size

    estimate = report.estimate
    if estimate is None:
        return []
    lines = [f"dry run: {count(report.images, 'image')} would go into {report.target}; nothing was written"]
    lines += _contents(report)
    lines.append(f"  size       about {size(report.bytes_in)} -> {size(estimate.bytes_out)}")
    lines.append(f"  time       about {duration(estimate.seconds)} with {count(report.workers, 'worker')}")
    enough = "enough" if estimate.bytes_free >= estimate.bytes_peak else "NOT ENOUGH"
    lines.append(f"  disk       {size(estimate.bytes_peak)} at most, {size(estimate.bytes_free)} free: {enough}")
    lines.append(f"  sample     {count(estimate.sample, 'image')} transcoded, {report.failed:,} failed")
    lines += [f"  {number:9,d}  {cause}" for cause, number in report.errors.items()]
    return lines + _notes(report)
