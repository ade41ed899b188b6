"""What do opening a container and its first sample cost at a thousand, 100,000 and ten million records?

python -m benchmarks.bench_scale [--counts 1000 100000 10000000] [--rounds 11] [--large 100000000 1000000000]
                                 [--work FOLDER] [--beside]
writes containers of tiny records (one field, `txt`, of some ten bytes) with `open_writer`, two at a time, opens each in
fresh processes and takes the record in its middle, as a reader and as a dataset. Times are those of opening and sample
alone: the process has imported everything and opened a container of one record before. Memory is the proportional set
size of the process. Everything is in the page cache. The containers, at most 16 GB, go to `--work` (default: the
temporary folder) and are removed.

`--large` are sets of as many images whose shards are sparse files (`large_sets`, 6 GB of disk for 10^8, 1 GB for
10^9): opening, the first batch of a shuffled epoch, and all labels. `--beside`: other programs work on this machine.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks import large_sets, measure

CONTAINERS = {"LMDB": ".lmdb", "tar": ".tar", "TFRecord": ".tfrecord"}
COUNTS = [1_000, 100_000, 10_000_000]
READER, DATASET = "open_reader, one record", "FastDataset, one sample"
WAYS = (READER, DATASET)
ASKED = 2.0  # times the figure of the fewest records, at most
Taken = dict[tuple[str, int], tuple[list[float], list[float], list[float]]]  # ms, MiB of the process, KiB added to it


def main() -> None:
    parser = measure.parser(__doc__, photos=False, counts=COUNTS, rounds=11, work=None)
    parser.add_argument(
        "--large", type=int, nargs="*", default=large_sets.COUNTS, help="images of sets with sparse shards"
    )
    parser.add_argument("--beside", action="store_true", help="say on the page that other programs worked beside it")
    parser.add_argument("--once", nargs=2, metavar=("WAY", "PATH"), help=argparse.SUPPRESS)
    parser.add_argument("--large-once", nargs=2, metavar=("WHAT", "PATH"), help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=2, metavar=("PATH", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        once(*arguments.once)
    elif arguments.large_once:
        print(large_sets.once(*arguments.large_once))
    elif arguments.write:
        write(arguments.write[0], int(arguments.write[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="iofast-scale-", dir=arguments.work) as name:
            report(Path(name), arguments)


def report(folder: Path, arguments: argparse.Namespace) -> None:
    """Make the containers, measure, publish the page."""
    # the largest and slowest first, so that both processes end at about the same time
    cases = list(itertools.product(sorted({1, *arguments.counts}, reverse=True), ("TFRecord", "tar", "LMDB")))
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(lambda case: written(folder, *case), cases))
    facts = dict(zip(cases, made, strict=True))
    parts, whole = [], measure.Figures(())
    for kind in CONTAINERS:
        taken = figures_of(kind, folder, arguments, whole)
        parts.append((kind, {count: facts[count, kind] for count in arguments.counts}, taken))
    text = page(parts, arguments) + large_sets.section(folder, arguments.large)
    note = (
        "- Other programs worked on this machine at the same time: times are provisional\n" if arguments.beside else ""
    )
    measure.publish("scale", text + "\n" + note, arguments.output, whole)


def written(folder: Path, count: int, kind: str) -> tuple[float, int]:
    """Make a container in a fresh process; return the seconds and the container's bytes."""
    path, start = folder / f"{count}{CONTAINERS[kind]}", time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.bench_scale", "--write", str(path), str(count)]
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - start
    names = {path.name, f"{path.name}.manifest", f"{path.name}.index", *(p.name for p in folder.glob(f"{count}-*"))}
    size = sum(
        (folder / name).stat().st_size for name in names if CONTAINERS[kind] in name and (folder / name).exists()
    )
    print(f"{count:,} records, {kind}: {size / 1e6:,.1f} MB in {seconds:,.1f} s", file=sys.stderr)
    return seconds, size


def write(path: str, count: int) -> None:
    from iofast import open_writer

    with open_writer(path) as writer:
        for number in range(count):
            writer.write({"txt": b"record %d" % number})


def figures_of(kind: str, folder: Path, arguments: argparse.Namespace, whole: measure.Figures) -> Taken:
    """What each way takes at each count, in fresh processes in turn."""
    cases = list(itertools.product(WAYS, arguments.counts))
    memory: dict[tuple[str, int], list[list[float]]] = defaultdict(list)

    def run(way: str, count: int) -> float:
        path = folder / f"{count}{CONTAINERS[kind]}"
        command = [sys.executable, "-m", "benchmarks.bench_scale", "--once", way, str(path)]
        milliseconds, *sizes = map(float, subprocess.check_output(command, text=True).split())
        memory[way, count].append(sizes)
        return milliseconds

    contenders = {f"{kind}, {count:,}: {way}": partial(run, way, count) for way, count in cases}
    for contender in contenders.values():  # into the page cache
        contender()
    memory.clear()
    figures = measure.in_turn(contenders, arguments.rounds)
    whole.add(figures)
    return {
        case: (own, *map(list, zip(*memory[case], strict=True)))
        for case, own in zip(cases, figures.values(), strict=True)
    }


def once(way: str, path: str) -> None:
    """Open in this fresh process; print milliseconds of opening and sample, MiB of the process, KiB of growth."""
    take = take_record if way == READER else take_sample
    kept: list[object] = [take(str(Path(path).with_name(f"1{Path(path).suffix}")))]  # imports; code that runs once
    gc.collect()
    before, start = measure.pss(), time.perf_counter()
    kept.append(take(path))
    seconds = time.perf_counter() - start
    after = measure.pss()
    print(1e3 * seconds, after / 1024, after - before)


def take_record(path: str) -> object:
    from iofast import open_reader

    reader = open_reader(path)
    return reader, reader.record(len(reader) // 2)


def take_sample(path: str) -> object:
    from iofast import FastDataset

    dataset = FastDataset(path, fields=["txt"])
    return dataset, dataset[len(dataset) // 2]


def page(parts: list[tuple[str, dict[int, tuple[float, int]], Taken]], arguments: argparse.Namespace) -> str:
    """The result as markdown."""
    sections, worst = [], {"time": 0.0, "memory": 0.0}
    for kind, made, taken in parts:
        rows = []
        for (way, count), (milliseconds, mebibytes, added) in taken.items():
            least = taken[way, min(arguments.counts)]
            times = statistics.median(milliseconds) / statistics.median(least[0])
            larger = statistics.median(mebibytes) / statistics.median(least[1])
            worst = {"time": max(worst["time"], times), "memory": max(worst["memory"], larger)}
            memory = (measure.spread(mebibytes, 1), f"{larger:.2f}", f"{statistics.median(added):,.0f}")
            rows.append([way, f"{count:,}", measure.spread(milliseconds, 2), f"{times:.2f}", *memory])
        header = (
            "",
            "records",
            "ms: median (least – most)",
            "times",
            "MiB: median (least – most)",
            "times",
            "KiB more",
        )
        sizes = [f"{count:,}: {size / 1e6:,.1f} MB in {seconds:,.0f} s" for count, (seconds, size) in made.items()]
        sections.append(f"## {kind}\n\n{measure.table(header, rows)}\n\nWritten: {'; '.join(sizes)}.\n")
    text = "\n".join(sections)
    held = "held" if max(worst.values()) < ASKED else "NOT held"
    return f"""# Opening and first sample of {" / ".join(f"{count:,}" for count in arguments.counts)} tiny records

Fresh processes, {arguments.rounds} of each in turn, everything in the page cache. Milliseconds are those of opening and
sample in a process that has opened a container of one record before; MiB are the process (proportional set size), and
`KiB more` is what opening and sample added to it; `times` is the growth over the fewest records.

Asked: less than {ASKED:g} times. Worst: time {worst["time"]:.2f}, memory {worst["memory"]:.2f}: **{held}**.

{text}"""


if __name__ == "__main__":
    main()
