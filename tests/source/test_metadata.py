"""Hugging Face's imagefolder: metadata files beside images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iofast.errors import SourceError
from iofast.source import Listing, SourceOptions
from iofast.source.folder import FolderReader
from iofast.source.scan import scan


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write a metadata file in the format of its suffix, and the image files that its rows name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pytest.importorskip("pyarrow")
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(rows), path)
    for row in rows:
        add(path.parent / str(row["file_name"]))
    return path


def add(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def labels(source: Listing) -> dict[str, int]:
    return {source.path(index).decode(): source.label(index) for index in range(len(source))}


ROWS: list[dict[str, object]] = [
    {"file_name": "b/2.jpg", "label": "dog", "text": "x"},
    {"file_name": "1.jpg", "label": "cat", "text": "y"},
]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("places", [("",), ("test/", "train/")])
def test_labels_and_fields_come_from_metadata(tmp_path: Path, suffix: str, places: tuple[str, ...]) -> None:
    for place in places:
        write(tmp_path / f"{place}metadata{suffix}", ROWS)
        add(tmp_path / place / "3.jpg")
    source = scan(tmp_path)
    assert (source.root, source.classes, source.fields) == (tmp_path, ("cat", "dog"), ("text.txt",))
    assert labels(source) == {
        f"{place}{name}": label for place in places for name, label in (("b/2.jpg", 1), ("1.jpg", 0), ("3.jpg", -1))
    }
    assert {name for name, _, _ in source.splits} == {place[:-1] or "all" for place in places}
    assert any(line.endswith(f": {len(places)}") for line in source.warnings if "without a row" in line)
    reader = FolderReader(tmp_path)
    assert (reader.source.fingerprint(), reader.source.root) == (source.fingerprint(), tmp_path)
    write(tmp_path / f"{places[-1]}metadata{suffix}", [*ROWS, {**ROWS[0], "file_name": "3.jpg"}])
    assert labels(FolderReader(tmp_path).source)[f"{places[-1]}3.jpg"] == 1  # not from the cache


def test_metadata_of_the_root_describes_splits(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"file_name": "./train/1.jpg", "label": 1}, {"file_name": "val/1.jpg", "label": 0}]
    write(tmp_path / "metadata.csv", rows)
    source = scan(tmp_path)
    assert (labels(source), source.splits) == (
        {"train/1.jpg": 1, "val/1.jpg": 0},
        (("train", 0, 1), ("val", 1, 2)),
    )


@pytest.mark.parametrize(
    ("name", "row", "classes"),
    [
        ("metadata.csv", {"file_name": "cat/1.jpg", "text": "class folders are better than no label"}, ("cat", "dog")),
        ("metadata.csv", {"licence": "free", "file_name": "cat/1.jpg", "Label": "lion"}, ("lion",)),
        ("cat/metadata.csv", {"file_name": "1.jpg", "label": "lion"}, ("cat", "dog")),
    ],
)
def test_class_folders_beside_metadata(
    tmp_path: Path, name: str, row: dict[str, object], classes: tuple[str, ...]
) -> None:
    write(tmp_path / name, [row])
    add(tmp_path / "dog/1.jpg")
    source = scan(tmp_path)
    assert source.classes == classes
    line = f"metadata files not read (pack one itself to use it as a list): {name}"
    assert (line in source.notes) == (classes != ("lion",))


def test_options_and_errors_are_those_of_lists(tmp_path: Path) -> None:
    path = write(tmp_path / "train/metadata.csv", [{"file_name": "1.jpg", "kind": "cat", "label": "x"}])
    assert scan(tmp_path, SourceOptions(label_column="kind")).classes == ("cat",)
    path.write_text("file_name,label\n1.jpg\n")
    with pytest.raises(SourceError, match=r"train/metadata\.csv, line 2: expected 2 columns"):
        scan(tmp_path)
    path.write_text("file_name,label\n,2\n")
    with pytest.raises(SourceError, match=r"train/metadata\.csv, line 2: the path is empty|the path is not text"):
        scan(tmp_path)
