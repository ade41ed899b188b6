"""Work on ranges of rows in threads, with a progress bar."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from iofast.bars import open_bar

THREADS = 16  # also on few cores: on a disk or network most of the time is waiting
CHUNK = 256  # rows per task


def in_threads(work: Callable[[int, int], object], count: int, unit: str, title: str, *, chunk: int = CHUNK) -> None:
    """Call `work(start, stop)` for ranges of `chunk` rows that cover [0, count), several at a time.

    The first error is raised, and ranges that were not begun are dropped. The bar appears after a second.
    """
    if count <= chunk:
        work(0, count)
        return
    starts, stops = range(0, count, chunk), [*range(chunk, count, chunk), count]
    with ThreadPoolExecutor(THREADS, "iofast-headers") as pool, open_bar(count, unit, title, delay=1) as bar:
        done = pool.map(work, starts, stops)  # an error cancels the rest
        for start, stop, _ in zip(starts, stops, done, strict=True):
            bar.update(stop - start)
