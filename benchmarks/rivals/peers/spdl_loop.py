"""SPDL: its pipeline with threads, on a folder of files. Variants: ffmpeg (its own decoder), simplejpeg.

Used as its examples image_dataloading and imagenet_classification do: paths are gathered to batches, and each thread of
the pool makes a whole batch, without processes. The FFmpeg filter crops, resizes and flips, and frames are written
straight into the batch. Batches come in the order of their completion, its default. FFmpeg's
shared libraries must be there (Debian: ffmpeg). The other variant decodes in the same threads with simplejpeg and
OpenCV, which leave the GIL.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import spdl.io
import torch
from decoding import batch_of, finished
from protocol import Options, main, pair
from spdl.pipeline import PipelineBuilder

from tools.pillow_folder import box, files_by_class


class Epochs:
    """A pipeline for each epoch, since one runs once; it costs some milliseconds."""

    def __init__(self, options: Options) -> None:
        self.options, self.files = options, list(files_by_class(Path(options.data)))
        self.batch = partial({"ffmpeg": _by_ffmpeg, "simplejpeg": _by_simplejpeg}[options.variant], options)

    def __iter__(self) -> Iterator[Any]:
        files, workers = self.files.copy(), self.options.workers
        if self.options.case != "centre":
            random.shuffle(files)
        builder = PipelineBuilder().add_source(files).aggregate(self.options.batch)
        pipeline = builder.pipe(self.batch, concurrency=workers).add_sink(2).build(num_threads=workers)
        with pipeline.auto_stop():
            yield from pipeline


def _by_simplejpeg(options: Options, files: list[tuple[Path, int]]) -> tuple[torch.Tensor, list[int]]:
    images = batch_of([path.read_bytes() for path, _ in files], options)
    return finished(images, options), [label for _, label in files]


def _by_ffmpeg(options: Options, files: list[tuple[Path, int]]) -> tuple[torch.Tensor, list[int]]:
    frames = [_frames(options, str(path)) for path, _ in files]
    images = spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2)
    return finished(images, options), [label for _, label in files]


def _frames(options: Options, path: str) -> Any:
    packets, size = spdl.io.demux_image(path), options.size
    if options.case == "centre":
        steps = f"scale=256:256:force_original_aspect_ratio=increase,crop={size}:{size}"
    else:
        x0, y0, x1, y1 = box(packets.width, packets.height)
        flip = ",hflip" if random.random() < 0.5 else ""
        steps = f"crop={x1 - x0}:{y1 - y0}:{x0}:{y0},scale={size}:{size}:flags=bilinear{flip}"
    return spdl.io.decode_packets(packets, filter_desc=f"{steps},format=rgb24")


def load(options: Options) -> tuple[Any, Any]:
    return Epochs(options), pair


if __name__ == "__main__":
    main(load)
