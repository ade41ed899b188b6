"""LitData: chunks made by `optimize`, StreamingDataset and StreamingDataLoader.

Used as its README says: chunks of 64 MB on the local disk, shuffled, persistent workers. Samples are JPEG bytes,
decoded in `__getitem__` of a subclass, which is its documented place for transforms. Its own way with images, samples
with a `JpegImageFile` that torchvision decodes, has not been timed here.
"""

import os
from pathlib import Path
from typing import Any

from decoding import collated, decoded, seen_by
from litdata import StreamingDataLoader, StreamingDataset, optimize
from protocol import Options, main

from tools.pillow_folder import files_by_class


class Images(StreamingDataset):
    def __init__(self, options: Options) -> None:
        super().__init__(options.data, shuffle=options.case != "centre", drop_last=False)
        self.options = options

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return decoded(sample["image"], self.options), sample["label"]


def load(options: Options) -> tuple[Any, Any]:
    made = {"num_workers": options.workers, "persistent_workers": True, "collate_fn": collated}
    return StreamingDataLoader(Images(options), batch_size=options.batch, **made), seen_by(options)


def _sample(file: tuple[Path, int]) -> dict[str, Any]:
    path, label = file
    return {"image": path.read_bytes(), "label": label}


def pack(source: Path, target: Path, options: Options) -> None:
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = f"{target}.cache"  # not in the home folder
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = f"{target}.data"
    several: dict[str, Any] = {"chunk_bytes": "64MB", "num_workers": options.workers, "reorder_files": False}
    optimize(_sample, list(files_by_class(source)), str(target), **several)


if __name__ == "__main__":
    main(load, pack)
