"""MosaicML Streaming: MDS shards on the local disk, StreamingDataset in torch's DataLoader.

Used as its guide says for local data: no remote, no compression, `batch_size` given to the dataset, shuffled by its
default algorithm (py1e), persistent workers. The column is "bytes" with the JPEG as it is. Its "jpeg" column, which
decodes with Pillow, has not been timed here. A worker decodes a sample at a time, because the dataset
is iterable and yields samples; the collate function then makes the batch.
"""

from pathlib import Path
from typing import Any

import torch
from decoding import collated, decoded, seen_by
from protocol import Options, main

from benchmarks.peers.vision import v2
from tools.pillow_folder import files_by_class

v2()  # Streaming imports torchvision, which may be of another build of torch
from streaming import MDSWriter, StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402


class Images(StreamingDataset):
    def __init__(self, options: Options) -> None:
        shuffled = options.case != "centre"
        super().__init__(local=options.data, shuffle=shuffled, batch_size=options.batch, num_canonical_nodes=1)
        self.options = options

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return decoded(sample["image"], self.options), sample["label"]


def load(options: Options) -> tuple[Any, Any]:
    clean_stale_shared_memory()  # a run that was killed leaves some, and the next one would not start
    made = {"num_workers": options.workers, "persistent_workers": True, "collate_fn": collated}
    return torch.utils.data.DataLoader(Images(options), options.batch, **made), seen_by(options)


def pack(source: Path, target: Path, _options: Options) -> None:
    with MDSWriter(out=str(target), columns={"image": "bytes", "label": "int"}) as writer:
        for path, label in files_by_class(source):
            writer.write({"image": path.read_bytes(), "label": label})


if __name__ == "__main__":
    main(load, pack)
