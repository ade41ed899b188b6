"""What do opening a container and its first sample cost at a thousand, 100,000, ten million, 10^8 and 10^9 records?

Containers of tiny records (one field, `txt`, of some ten bytes) are written with `open_writer`, two at a time, and
opened in fresh processes, which take the record in the middle, as a reader and as a dataset. Times are those of opening
and sample alone: the process has imported everything and opened a container of one record before. Memory is the
proportional set size of the process. Everything is in the page cache. The containers take 16 GB.

Sets of 10^8 and 10^9 images have shards that are sparse files (`large_sets`, 6 GB and 1 GB of disk): opening, the first
batch of a shuffled epoch, and all labels.
"""

import gc
import itertools
import statistics
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks import measure
from benchmarks.parts import large_sets

CONTAINERS = {"LMDB": ".lmdb", "tar": ".tar", "TFRecord": ".tfrecord"}
COUNTS = (1_000, 100_000, 10_000_000)
LARGE = (100_000_000, 1_000_000_000)
READER, DATASET = "open_reader, one record", "FastDataset, one sample"
in_process = partial(measure.in_process, "benchmarks.parts.scale")
HEADER = ("", "records", "ms: median (least – most)", "times", "MiB: median (least – most)", "times", "KiB more")


def scale(bench: measure.Bench) -> None:
    """The part `scale`."""
    counts, whole, sections = COUNTS[: bench.size(3, 1)], measure.Figures(()), []
    with bench.folder() as name:
        folder = Path(name)
        # the largest and slowest first, so that both processes end at about the same time
        cases = list(itertools.product(sorted({1, *counts}, reverse=True), ("TFRecord", "tar", "LMDB")))
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda case: in_process("write", folder / f"{case[0]}{CONTAINERS[case[1]]}"), cases))
        for kind, suffix in CONTAINERS.items():
            rows = rows_of([folder / f"{count}{suffix}" for count in counts], bench.rounds(11), whole)
            sections.append(f"## {kind}\n\n{measure.table(HEADER, rows)}\n")
        large = large_sets.section(folder, LARGE[: bench.size(2, 0)] or (1_000_000,))
    bench.publish(
        f"""# Opening and first sample of {" / ".join(f"{count:,}" for count in counts)} tiny records

Fresh processes, {bench.rounds(11)} of each in turn, everything in the page cache. Milliseconds are those of opening and
sample in a process that has opened a container of one record before; MiB are the process (proportional set size), and
`KiB more` is what opening and sample added to it; `times` is the growth over the fewest records.

{chr(10).join(sections)}{large}""",
        whole,
    )


def rows_of(paths: list[Path], rounds: int, whole: measure.Figures) -> list[list[str]]:
    """What each way takes of each container, in fresh processes in turn."""
    memory: dict[tuple[str, Path], list[list[float]]] = defaultdict(list)

    def run(way: str, path: Path) -> float:
        milliseconds, *sizes = in_process("take_record" if way == READER else "take_sample", path)
        memory[way, path].append(sizes)
        return milliseconds

    cases = list(itertools.product((READER, DATASET), paths))
    contenders = {f"{way} {path.name}": partial(run, way, path) for way, path in cases}
    for contender in contenders.values():  # into the page cache
        contender()
    memory.clear()
    figures = measure.in_turn(contenders, rounds)
    whole.add(figures)
    rows = []
    for way, path in cases:
        own, least = figures[f"{way} {path.name}"], figures[f"{way} {paths[0].name}"]
        mebibytes, added = zip(*memory[way, path], strict=True)
        times = statistics.median(own) / statistics.median(least)
        larger = statistics.median(mebibytes) / statistics.median(each for each, _ in memory[way, paths[0]])
        sizes = (measure.spread(mebibytes, 1), f"{larger:.2f}", f"{statistics.median(added):,.0f}")
        rows.append([way, f"{int(path.stem):,}", measure.spread(own, 2), f"{times:.2f}", *sizes])
    return rows


def write(path: Path) -> None:
    """Write as many records as the file's name says."""
    from iofast import open_writer

    with open_writer(path) as writer:
        for number in range(int(path.stem)):
            writer.write({"txt": b"record %d" % number})


def take_record(path: Path) -> object:
    from iofast import open_reader

    reader = open_reader(path)
    return reader, reader.record(len(reader) // 2)


def take_sample(path: Path) -> object:
    from iofast import FastDataset

    dataset = FastDataset(path, fields=["txt"])
    return dataset, dataset[len(dataset) // 2]


def main(what: str, path: Path) -> None:
    """In a fresh process: print milliseconds of opening and sample, MiB of the process, KiB of growth."""
    if what == "write":
        write(path)
        return
    take = take_record if what == "take_record" else take_sample
    kept: list[object] = [take(path.with_name(f"1{path.suffix}"))]  # imports; code that runs once
    gc.collect()
    seconds, grown = measure.grown(lambda: kept.append(take(path)))
    print(1e3 * seconds, measure.pss() / 1024, grown)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
