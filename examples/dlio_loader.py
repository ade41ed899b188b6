"""FastLoader inside the MLPerf Storage benchmark: a data loader for DLIO, which runs its image workloads.

    pip install dlio-benchmark                           # needs MPI
    iofast pack data/resnet50/train train.lmdb           # the JPEGs that DLIO has generated, byte by byte
    IOFAST_DATA=train.lmdb PYTHONPATH=examples dlio_benchmark workload=resnet50 \
        ++workload.reader.data_loader_classname=dlio_loader.IofastLoader \
        ++workload.reader.data_loader_sampler=iterative

Without IOFAST_DATA it reads DLIO's own folder of files. DLIO sets batch size, threads, rank and epochs, and takes the
time that its emulated accelerator waits for batches. Images are resized to `SIZE`, so that they make a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

from iofast import FastDataset, FastLoader
from iofast import transforms as T

SIZE = 224


class IofastLoader(BaseDataLoader):
    """What DLIO calls for each dataset: `read` once, then `next` in each epoch."""

    def __init__(self, format_type: Any, dataset_type: DatasetType, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)

    def read(self) -> None:
        """Open the data."""
        is_training = self.dataset_type is DatasetType.TRAIN
        folder = Path(self._args.data_folder, f"{self.dataset_type}")
        packed = os.environ.get("IOFAST_DATA") if is_training else None
        self._loader = FastLoader(
            FastDataset(packed or folder),
            self.batch_size,
            shuffle=is_training,
            drop_last=True,
            transform=T.train(SIZE) if is_training else T.evaluate(SIZE),
            num_workers=max(1, self._args.read_threads),
            rank=self._args.my_rank,
            world_size=self._args.comm_size,
        )

    def next(self) -> Iterator[Any]:
        """The batches of an epoch."""
        yield from self._loader

    def finalize(self) -> None:
        """Nothing is left open: the loader ends its threads with the object."""
