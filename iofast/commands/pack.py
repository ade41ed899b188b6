"""Pack images of a folder, a manifest or a container into LMDB, tar or TFRecord.

examples:
  iofast pack ./images out.lmdb --resize 256
      short side 256 pixels, JPEG quality 90; class folders become labels
  iofast pack ./images out.lmdb
      JPEG, PNG and WebP files byte by byte; others (BMP, TIFF, GIF) become PNGs: first picture, opaque, 8 bits
  iofast pack ./images out.lmdb --resize 224 --mode crop --format webp
      centre squares of 224 x 224
  iofast pack ./images out.lmdb --resize 256 --format rgb
      raw pixels, which no loader has to decode: about ten times the size of JPEG
  iofast pack list.csv out.lmdb --resize 256 --shuffle 1
      the images that a manifest (path, label, ...) names, in a fixed random order
  iofast pack s3://bucket/photos/ out.lmdb --resize 256
      an object store, or a manifest with URLs; credentials come from the environment
  iofast pack ./images out.lmdb --resize 640 --mode pad --fields seg.png,json=boxes.json --boxes boxes.json
      640 x 640, with the masks and boxes that lie beside the images
  iofast pack 'originals-{000000..000099}.tar' small.lmdb --resize 256
      WebDataset's shards; likewise TFRecords, LMDB, Parquet, Arrow, and what iofast packed before
  iofast pack a.lmdb b.tar ./more both.lmdb
      several sources in one: records of the first, then of the second, ...; classes united by their names
  iofast pack ./images out.lmdb --resize 256 --min-size 64 --max-aspect 4
      without small and extremely long images
  iofast pack ./images shards/train.tar --resize 256 --shard-size 500MB
      WebDataset's tar shards: train-000000.tar, train-000001.tar, ...
  iofast pack ./images shards/train.tfrecord --resize 256
      TFRecord: train-00000-of-00016.tfrecord, ...
  iofast pack ./images out.lmdb --resize 256 --split val=0.1,test=0.05 --split-seed 1
      a tenth of the images for validation, a twentieth for testing, the rest for training
  iofast pack ./images out.lmdb --resize 256 --dry-run
      transcode a sample, write nothing, estimate size and time
  iofast pack ./images shards/train.tar --resize 256 --part 3/8
      the third of eight parts, on any machine that sees both folders; then once: the same with --finish
  iofast pack ./images s3://bucket/sets/train.tar --resize 256
      shards in an object store; the same command on several machines shares the work
  sbatch --array=1-100 ... iofast pack ./images shards/train.tar --resize 256 --part slurm --finish-when-complete
      a part for each task of a SLURM array; the last one joins them
  iofast pack ./images shards/train.tar --resize 256 --on ray
      on all nodes of a Ray cluster, or on this machine; RAY_ADDRESS or --on ray://HOST:PORT names the cluster

An interrupted run is resumed by the same command.
Images that cannot be packed are listed in DST.errors.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from iofast.commands.shared import add_foreign, add_option, add_output, count, duration, foreign_given, given, say, size
from iofast.packing.option_fields import GROUPS, command_line

if TYPE_CHECKING:
    from iofast.packing.pool import WorkerPool
    from iofast.packing.report import PackReport


# The options that most runs use: on the first screen of --help, before the groups.
_FIRST = ("resize", "mode", "format", "quality", "fields", "shuffle", "split", "workers", "overwrite", "dry_run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.argument_default = argparse.SUPPRESS  # defaults are those of PackOptions
    parser.add_argument(
        "source",
        metavar="SRC",
        nargs="+",
        help="folder of images, manifest (.csv, .jsonl, .parquet), container, or URL; several become one container",
    )
    parser.add_argument("target", metavar="DST", help="out.lmdb, train.tar, train.tfrecord, or such a URL")
    parser.usage = "%(prog)s SRC DST [options]"
    groups = {title: parser.add_argument_group(title) for title in GROUPS}
    for title, fields in GROUPS.items():
        for each in command_line(fields):
            more = {"action": "append"} if each.name == "split" else {}
            add_option(parser if each.name in _FIRST else groups[title], each, **more)
    add_foreign(groups["samples"])
    add_output(groups["running"], "print the report as JSON", "no progress bar, no summary")


def run(args: argparse.Namespace) -> int:
    """Pack, print the summary or the JSON, and return the exit status."""
    from iofast.machine import cores
    from iofast.packing.pool import WorkerPool

    workers = vars(args).get("workers")
    idle = bool(vars(args).get("on") or vars(args).get("finish"))
    if args.command == "convert":
        from iofast.opening import is_container

        idle = is_container(args.source)  # one process copies it
    with WorkerPool(cores() if workers is None else workers, idle=idle) as pool:
        report = _pack(args, pool)
    if args.json:
        print(report.to_json())
    elif not args.quiet:
        say(*summary(report))
    return report.status


def _pack(args: argparse.Namespace, pool: WorkerPool) -> PackReport:
    from iofast.packing.options import PackOptions  # here, so that the workers' imports run beside these
    from iofast.packing.progress import PackProgress
    from iofast.packing.run import run as pack

    named = given(args, GROUPS.values())
    if "split" in named:  # it may be given several times
        named["split"] = ",".join(named["split"])
    options = PackOptions(**named, foreign=foreign_given(args))
    progress = PackProgress(visible=not args.quiet, name=f"iofast {args.command}", typed=args.typed)
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints news of lost nodes, which must not mix with the JSON
        return pack(args.source, args.target, options, progress, pool)


def summary(report: PackReport) -> list[str]:
    """Return the lines of the summary."""
    from iofast.packing.part import missing_words

    workers, images = count(report.workers, "worker"), count(report.packed, "image")
    title, last = f"packed {images} into {report.target}", [("next", report.next_step)]
    if report.part is not None:
        title = f"packed {images} of part {report.part[0]:,} of {report.part[1]:,} for {report.target}"
        left = missing_words(report.missing, report.part[1]) if report.missing else ""
        last.insert(0, ("next", left or "every part is packed: the same command with --finish"))
    ratio = f", {report.bytes_out / report.bytes_in:.0%}" if report.bytes_in else ""
    rows = [
        ("resumed", f"{count(report.resumed, 'image')} were done already" if report.resumed else ""),
        *_contents(report),
        ("size", f"{size(report.bytes_in)} -> {size(report.bytes_out)}{ratio}"),
        ("time", f"{duration(report.seconds)}, {report.images_per_second:,.0f} images/s, {workers}"),
        ("left out", f"{count(report.left_out, 'image')} by size or aspect" if report.left_out else ""),
        ("failed", f"{count(report.failed, 'image')}, listed in {report.errors_file}" if report.failed else ""),
    ]
    if (estimate := report.estimate) is not None:
        title, last = f"dry run: {count(report.images, 'image')} would go into {report.target}; nothing was written", []
        enough = "enough" if estimate.bytes_free >= estimate.bytes_peak else "NOT ENOUGH"
        rows = [
            *_contents(report),
            ("size", f"about {size(report.bytes_in)} -> {size(estimate.bytes_out)}"),
            ("time", f"about {duration(estimate.seconds)} with {workers}"),
            ("disk", f"{size(estimate.bytes_peak)} at most, {size(estimate.bytes_free)} free: {enough}"),
            ("sample", f"{count(estimate.sample, 'image')} transcoded, {report.failed:,} failed"),
        ]
    rows += [(f"{number:9,d}", cause) for cause, number in report.errors.items()]
    rows += [("note", note) for note in report.notes]
    return [title, *(f"  {name:<10} {value}" for name, value in (*rows, *last) if value)]


def _contents(report: PackReport) -> list[tuple[str, str]]:
    splits = report.splits if set(report.splits) != {"all"} else {}
    nothing = report.unlabelled == report.images > 0
    return [
        ("classes", "" if report.classes is None else f"{report.classes:,}"),
        ("labels", "none" if nothing else ""),
        ("unlabelled", f"{report.unlabelled:,} of {report.images:,}" if report.unlabelled and not nothing else ""),
        ("splits", ", ".join(f"{name} {number:,}" for name, number in splits.items())),
    ]
