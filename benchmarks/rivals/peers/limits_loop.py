"""What no loader can exceed with the same means. Variants, each on as many threads as there are workers:

turbojpeg     libjpeg-turbo 2.1, the system's, decodes all images in full: a C program
simplejpeg    the same with the libjpeg-turbo 3.1 that simplejpeg has
resampler     iofast's kernel crops and resamples raw pixels
copy          the pixels of finished batches are copied
memory        no loader: one batch again and again. With a network, what training alone reaches
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import protocol
import simplejpeg
import torch
from protocol import SECONDS, Options, Seen, serve

from benchmarks import bench_load
from iofast import FastDataset
from tools.pillow_folder import files_by_class

Limit = Callable[[], tuple[int, float]]  # images, seconds


def turbojpeg(options: Options) -> Limit:
    blob = Path(options.data)
    run, count = bench_load.limit(blob, blob.parent, options.workers), int.from_bytes(blob.read_bytes()[:4], "little")
    return lambda: (count, count / run())


def resampler(options: Options) -> Limit:
    run = bench_load.resampler(Path(options.data))
    count = min(bench_load.RESAMPLED, len(FastDataset(options.data)))
    return lambda: (count, count / run())


def decoder(options: Options) -> Limit:
    images = [path.read_bytes() for path, _ in files_by_class(Path(options.data))]
    return partial(_threaded, simplejpeg.decode_jpeg, images, options.workers)


def copy(options: Options) -> Limit:
    batch = np.zeros((options.batch, options.size, options.size, 3), np.uint8)
    outs = [np.empty_like(batch[0]) for _ in range(options.workers)]
    count = len(batch)
    return lambda: _threaded(lambda row: np.copyto(outs[row % len(outs)], batch[row % count]), range(5000), len(outs))


def _threaded(work: Callable[[Any], Any], items: Sequence[Any], threads: int) -> tuple[int, float]:
    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(lambda part: list(map(work, part)), items[at::threads]) for at in range(threads)]:
            done.result()
    return len(items), time.perf_counter() - begun


def memory(options: Options) -> tuple[Any, Any]:
    count = len(files_by_class(Path(options.data)))
    batch = torch.randn(options.batch, options.size, options.size, 3).permute(0, 3, 1, 2)

    def seen(start: int) -> Seen:
        images = batch[: count - start]
        return len(images), images

    return range(0, count, options.batch), seen


LIMITS = {"turbojpeg": turbojpeg, "simplejpeg": decoder, "resampler": resampler, "copy": copy}


def main() -> None:
    options = Options(**json.loads(sys.argv[-1]))
    if options.variant == "memory":
        protocol.main(memory)
        return
    once = LIMITS[options.variant](options)

    def run(_: float, is_first: bool) -> dict[str, Any]:
        images, seconds = once()
        while seconds < SECONDS and not is_first:
            more, took = once()
            images, seconds = images + more, seconds + took
        return {"images": images, "seconds": seconds, "first": 0.0}

    serve(run)


if __name__ == "__main__":
    main()
