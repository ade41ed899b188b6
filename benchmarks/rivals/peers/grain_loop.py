"""Grain: an ArrayRecord file and its Dataset API.

Used as its documentation on data sources and Dataset says: ArrayRecord written with `group_size:1` for random access,
a MapDataset that is shuffled, mapped and batched, so that each thread (`ReadOptions(num_threads)`) makes whole batches;
the decoder leaves the GIL. With processes (`mp_prefetch`) it did not run here: no batch within 40 s.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
import torch
from array_record.python.array_record_module import ArrayRecordWriter
from decoding import decoded, finished
from protocol import Options, Seen, main

from tools.pillow_folder import files_by_class

LABEL_BYTES = 4


class Decode(grain.transforms.Map):
    def __init__(self, options: Options) -> None:
        self.options = options

    def map(self, record: bytes) -> tuple[Any, int]:
        return decoded(record[LABEL_BYTES:], self.options), int.from_bytes(record[:LABEL_BYTES], "little")


class Epochs:
    """An iterator of batches for each epoch: `reseed_each_epoch` shuffles a repeated dataset anew."""

    def __init__(self, options: Options) -> None:
        self.options, self.epoch = options, 0
        self.source = grain.sources.ArrayRecordDataSource(options.data)

    def __iter__(self) -> Iterator[Any]:
        data = grain.MapDataset.source(self.source).seed(self.epoch)
        self.epoch += 1
        if self.options.case != "centre":
            data = data.shuffle()
        data = data.map(Decode(self.options))
        read = grain.ReadOptions(num_threads=self.options.workers, prefetch_buffer_size=2 * self.options.workers)
        return iter(data.batch(self.options.batch).to_iter_dataset(read))


def load(options: Options) -> tuple[Any, Any]:
    def seen(batch: Any) -> Seen:
        images, labels = batch
        return len(labels), finished(torch.from_numpy(images).permute(0, 3, 1, 2), options)

    return Epochs(options), seen


def pack(source: Path, target: Path, _options: Options) -> None:
    writer = ArrayRecordWriter(str(target), "group_size:1")
    for path, label in files_by_class(source):
        writer.write(np.uint32(label).tobytes() + path.read_bytes())
    writer.close()


if __name__ == "__main__":
    main(load, pack)
