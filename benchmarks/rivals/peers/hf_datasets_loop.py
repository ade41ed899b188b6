"""Hugging Face datasets: Parquet with images, `with_transform` and torch's DataLoader.

Used as its guides say: Parquet is opened once by `load_dataset`, which memory-maps it as Arrow; `with_transform`
decodes when samples are read, for a whole batch, since the DataLoader asks for a batch at once (`__getitems__`).
`Image(decode=False)` gives the bytes; its own decoding with Pillow has not been timed here.
"""

from functools import partial
from pathlib import Path
from typing import Any

import decoding
import torch
from datasets import Dataset, Features, Image, Value, load_dataset
from decoding import decoded, seen_by
from protocol import Options, main, several

from tools.pillow_folder import files_by_class


def load(options: Options) -> tuple[Any, Any]:
    made = load_dataset("parquet", data_files=options.data, split="train", cache_dir=f"{options.data}.cache")
    data = made.cast_column("image", Image(decode=False)).with_transform(partial(decoded_batch, options))
    return torch.utils.data.DataLoader(data, options.batch, collate_fn=collated, **several(options)), seen_by(options)


def decoded_batch(options: Options, samples: dict[str, list[Any]]) -> dict[str, Any]:
    return {"image": [decoded(each["bytes"], options) for each in samples["image"]], "label": samples["label"]}


def collated(samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    return decoding.collated([(each["image"], each["label"]) for each in samples])


def pack(source: Path, target: Path, _options: Options) -> None:
    files = files_by_class(source)
    columns = {
        "image": [{"bytes": path.read_bytes(), "path": path.name} for path, _ in files],
        "label": [label for _, label in files],
    }
    Dataset.from_dict(columns, Features({"image": Image(), "label": Value("int64")})).to_parquet(str(target))


if __name__ == "__main__":
    main(load, pack)
