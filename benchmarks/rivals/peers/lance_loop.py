"""Lance: a dataset with a column of JPEG bytes, `SafeLanceDataset` in torch's DataLoader.

Used as its page on PyTorch says: the map-style dataset with the "safe" loader, whose workers are spawned because
Lance's threads do not survive a fork; a batch is one `take` (`__getitems__`), and the collate function decodes it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import torch
from decoding import batch_of, seen_by
from lance.torch.data import SafeLanceDataset, get_safe_loader
from protocol import Options, main, several

from tools.pillow_folder import files_by_class

SCHEMA = pa.schema([("image", pa.binary()), ("label", pa.int64())])


def load(options: Options) -> tuple[Any, Any]:
    made = {"batch_size": options.batch, "collate_fn": partial(collated, options), **several(options)}
    return get_safe_loader(SafeLanceDataset(options.data), **made), seen_by(options)


def collated(options: Options, samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    return batch_of([each["image"] for each in samples], options), torch.tensor([each["label"] for each in samples])


def pack(source: Path, target: Path, _options: Options) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        files = files_by_class(source)
        for start in range(0, len(files), 256):
            some = files[start : start + 256]
            yield pa.record_batch([[path.read_bytes() for path, _ in some], [label for _, label in some]], SCHEMA)

    lance.write_dataset(pa.RecordBatchReader.from_batches(SCHEMA, batches()), str(target))


if __name__ == "__main__":
    main(load, pack)
