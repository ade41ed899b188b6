"""Work on ranges of rows in threads, with a progress bar."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

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
    pool = ThreadPoolExecutor(THREADS, "iofast-headers")
    try:
        ranges = [(start, min(start + chunk, count)) for start in range(0, count, chunk)]
        tasks = {pool.submit(work, *each): each for each in ranges}
        with open_bar(count, unit, title, delay=1) as bar:
            for task in as_completed(tasks):
                task.result()
                start, stop = tasks[task]
                bar.update(stop - start)
    finally:
        pool.shutdown(cancel_futures=True)
