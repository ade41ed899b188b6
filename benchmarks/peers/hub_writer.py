"""A folder of class folders as Hugging Face `datasets` stores it: Parquet for the Hub, and `save_to_disk`.

python hub_writer.py FOLDER PARQUET ARROW, in an environment with `datasets`
"""

from __future__ import annotations

import sys
from pathlib import Path

from datasets import ClassLabel, Dataset, Features, Image


def main() -> None:
    folder, parquet, arrow = map(Path, sys.argv[1:])
    classes = sorted(path.name for path in folder.iterdir())
    files = [(path, number) for number, name in enumerate(classes) for path in sorted((folder / name).iterdir())]
    columns = {
        "image": [{"bytes": path.read_bytes(), "path": path.name} for path, _ in files],
        "label": [label for _, label in files],
    }
    made = Dataset.from_dict(columns, Features({"image": Image(), "label": ClassLabel(names=classes)}))
    made.to_parquet(str(parquet))
    made.save_to_disk(str(arrow))


if __name__ == "__main__":
    main()
