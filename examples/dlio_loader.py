"""FastLoader in the MLPerf Storage benchmark: a data loader for DLIO, the program that runs its workloads.

    pip install 'iofast[torch]' mpi4py mpich pydftracer==1.0.2 hydra-core h5py pandas tensorflow-cpu
    pip install --no-deps dlio-benchmark==2.0.0
    export DFTRACER_ENABLE=0 PYTHONPATH=examples IOFAST_DATA=train.lmdb
    OPTIONS="workload=resnet50_h100 ++workload.framework=pytorch ++workload.reader.data_loader=pytorch
        ++workload.dataset.format=jpeg ++workload.dataset.num_samples_per_file=1"
    dlio_benchmark $OPTIONS ++workload.workflow.generate_data=True ++workload.workflow.train=False
    iofast pack data/resnet50/train train.lmdb --format keep
    dlio_benchmark $OPTIONS ++workload.reader.data_loader_sampler=iterative \
        ++workload.reader.data_loader_classname=dlio_loader.IofastLoader

`dlio_loader.WatchedLoader` is DLIO's own loader, whose stall `iofast monitor` then measures from inside.

Without IOFAST_DATA a FastLoader reads DLIO's own files. The workload's TFRecords have random bytes for images, which no
loader can decode, so they are replaced by the JPEGs that DLIO makes. DLIO gives batch size, threads, rank and epoch;
`AU` in its report is the share of time in which its emulated accelerator had a batch.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.data_loader.torch_data_loader import TorchDataLoader

from iofast import FastDataset, FastLoader, watch
from iofast import transforms as T

SIZE = 224  # pixels


class IofastLoader(BaseDataLoader):  # type: ignore[misc]  # untyped
    """DLIO calls `read` once, and goes through `next` in each epoch until it has had its steps."""

    def __init__(self, format_type: Any, dataset_type: DatasetType, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)

    def read(self) -> None:
        """Open the data set."""
        is_training = self.dataset_type is DatasetType.TRAIN
        folder = Path(self._args.data_folder, f"{self.dataset_type}")
        self._loader = FastLoader(
            FastDataset((is_training and os.environ.get("IOFAST_DATA")) or folder),
            self.batch_size,
            shuffle=is_training,
            drop_last=True,
            seed=self._args.seed,
            transform=T.train(SIZE) if is_training else T.evaluate(SIZE),
            dtype=torch.float32,
            num_workers=max(1, self._args.read_threads),
            rank=self._args.my_rank,
            world_size=self._args.comm_size,
        )
        self._loader.set_epoch(self.epoch_number)

    def next(self) -> Iterator[Any]:
        """The batches of the epoch."""
        yield from self._loader

    def finalize(self) -> None:
        """Called after each epoch; the loader goes on with the next."""


class WatchedLoader(TorchDataLoader):  # type: ignore[misc]  # untyped
    """DLIO's own loader, torch's DataLoader, which reports to the monitor."""

    def read(self) -> None:
        """Open the data set."""
        super().read()
        self._dataset = watch(self._dataset)
