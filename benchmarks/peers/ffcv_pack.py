"""FFCV's writer, for `benchmarks.bench_pack`: a script that FFCV's own environment runs.

`ffcv_pack.py SRC DST.beton` writes every image of SRC as a JPEG of quality 90 whose longer side has at most 341 pixels:
for photographs of 4:3 the pixels of a short side of 256, the only limit that FFCV offers. OpenCV reads the
images: it decodes faster than Pillow, which FFCV's documentation uses. There is one process per core, as in that
documentation. It prints the seconds of the writing alone, since FFCV's imports take longer than a small set.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import cv2
import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.writer import DatasetWriter

LONG, QUALITY, PROCESSES = 341, 90, 2


class Photographs:
    """Images with the number of their folder: what FFCV calls an indexed dataset."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = sorted({path.parent for path in self.files})
        self.labels = {name: number for number, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path = self.files[index]
        return cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB), self.labels[path.parent]


def main() -> None:
    cv2.setNumThreads(0)  # the processes share the cores
    photographs = Photographs(Path(sys.argv[1]))
    image = RGBImageField(write_mode="jpg", max_resolution=LONG, jpeg_quality=QUALITY)
    writer = DatasetWriter(sys.argv[2], {"image": image, "label": IntField()}, num_workers=PROCESSES)
    start = time.perf_counter()
    writer.from_indexed_dataset(photographs)
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
