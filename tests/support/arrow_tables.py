"""Tables of images as `datasets` writes them: Parquet on the Hub, and Arrow by `save_to_disk`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from container_sets import picture

CLASSES = ("tench", "größe", "kite")
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def columns(count: int, start: int = 0) -> dict[str, Any]:
    """Columns of `count` rows: an image, a class and others, some of which are null."""
    numbers = range(start, start + count)
    return {
        "image": pa.array([{"bytes": picture(each), "path": f"{each}.jpg"} for each in numbers], IMAGE),
        "label": pa.array([each % 3 for each in numbers], pa.int64()),
        "caption": pa.array([f"größe {each}" if each % 4 else None for each in numbers]),
        "score": pa.array([each / 4 for each in numbers], pa.float32()),
        "seen": pa.array([None if each % 5 == 0 else each for each in numbers], pa.int32()),
        "good": pa.array([each % 2 == 0 for each in numbers]),
        "objects": pa.array([{"bbox": [[each, 1.5]], "id": [each]} for each in numbers]),
    }


def table(held: Mapping[str, Any], classes: Sequence[str] | None = CLASSES) -> pa.Table:
    """A table with the metadata of `datasets`."""
    features: dict[str, Any] = {"image": {"_type": "Image"}, "score": {"dtype": "float32", "_type": "Value"}}
    if classes:
        features["label"] = {"names": list(classes), "_type": "ClassLabel"}
    told = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    return pa.table(dict(held)).replace_schema_metadata(told)


def write_parquet(path: Path, rows: pa.Table, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, **({"row_group_size": 4} | options))
    return path


def write_arrow(path: Path, rows: pa.Table, *, per_batch: int = 3, is_file: bool = False, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = pa.ipc.IpcWriteOptions(**options)
    opened = (pa.ipc.new_file if is_file else pa.ipc.new_stream)(str(path), rows.schema, options=kept)
    with opened as stream:
        stream.write_table(rows, max_chunksize=per_batch)
    return path


def save_to_disk(folder: Path, rows: pa.Table, split: str | None = None, *, files: int = 2) -> Path:
    """A folder as `Dataset.save_to_disk` writes it."""
    names = [f"data-{number:05d}-of-{files:05d}.arrow" for number in range(files)]
    share = -(-len(rows) // files)
    for number, name in enumerate(names):
        write_arrow(folder / name, rows.slice(number * share, share))
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": split}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder
