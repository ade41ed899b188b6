"""Parquet files of the Hugging Face Hub, and Arrow files of `datasets.save_to_disk`."""

import datetime
import decimal
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_sets import convert, picture
from kernel_images import photo, save
from PIL import Image

pa = pytest.importorskip("pyarrow")

from arrow_tables import CLASSES, IMAGE, columns, save_to_disk, table, write_arrow, write_parquet  # noqa: E402

from iofast import FastDataset, pack, staging  # noqa: E402
from iofast.errors import ContainerError, OptionError, SourceError  # noqa: E402
from iofast.opening import is_container, open_reader  # noqa: E402


def fields(number: int) -> dict[str, bytes]:
    """The fields of a row of `columns`."""
    others = {"score": number / 4, "seen": None if number % 5 == 0 else number, "good": number % 2 == 0}
    others |= {"objects": {"bbox": [[float(number), 1.5]], "id": [number]}}  # type: ignore[dict-item]
    found = {
        "jpg": picture(number),
        "image_path.txt": b"%d.jpg" % number,
        "cls": b"%d" % (number % 3),
        "json": json.dumps(others, separators=(",", ":")).encode(),
    }
    return found | ({"caption.txt": f"größe {number}".encode()} if number % 4 else {})


def check(path: Any, count: int = 10) -> None:
    """Rows 0 to `count` of `columns` are the records at `path`."""
    with open_reader(path) as reader:
        for number, record in enumerate(reader):
            own = dict(record.fields)
            assert own == fields(number)
        assert len(reader) == count
        assert reader.manifest.classes == CLASSES
        located = reader.locate(np.arange(count))
        assert located.label.tolist() == [number % 3 for number in range(count)]
        assert (located.width > 0).all()
        again = pickle.loads(pickle.dumps(reader))
        assert again.values(np.array([3, 1]), "jpg") == [picture(3), picture(1)]


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"compression": "none", "use_dictionary": False}])
def test_parquet(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_parquet(tmp_path / "images.parquet", table(columns(10)), **options)
    assert is_container(path)
    check(path)
    check(path)  # from the cache


@pytest.mark.parametrize("is_file", [False, True])
def test_arrow(tmp_path: Path, is_file: bool) -> None:
    check(write_arrow(tmp_path / "images.arrow", table(columns(10)), is_file=is_file))


def test_saved_to_disk(tmp_path: Path) -> None:
    check(save_to_disk(tmp_path / "one", table(columns(10)), "train", files=3))
    with open_reader(tmp_path / "one") as reader:
        assert reader.manifest.splits == {"train": ((0, 10),)}
    save_to_disk(tmp_path / "set" / "train", table(columns(7)), "train")
    save_to_disk(tmp_path / "set" / "test", table(columns(3, 7)), "test", files=1)
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    check(tmp_path / "set")
    with open_reader(tmp_path / "set") as reader:
        assert reader.manifest.splits == {"train": ((0, 7),), "test": ((7, 10),)}


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        ("data/train-00000-of-00002", "data/train-00001-of-00002", "data/test-00000-of-00001"),
        ("train/0000", "train/0001", "test/0000"),
        ("train_a", "train_b", "test"),
    ],
)
def test_folder_of_the_hub(tmp_path: Path, first: str, second: str, third: str) -> None:
    for name, start, stop in ((first, 0, 4), (second, 4, 7), (third, 7, 10)):
        write_parquet(tmp_path / "set" / f"{name}.parquet", table(columns(stop - start, start)))
    (tmp_path / "set" / "README.md").write_text("---\n")
    check(tmp_path / "set")
    with open_reader(tmp_path / "set") as reader:
        assert reader.manifest.splits == {"train": ((0, 7),), "test": ((7, 10),)}
    assert len(FastDataset(tmp_path / "set", "test")) == 3
    assert FastDataset(f"{tmp_path}/set/{first[:-1]}*.parquet").targets[:3] == [0, 1, 2]


def test_pack_and_convert(tmp_path: Path) -> None:
    write_parquet(tmp_path / "set" / "data" / "train-00000-of-00001.parquet", table(columns(10)))
    pack(tmp_path / "set", tmp_path / "packed.lmdb", format="keep")
    convert(tmp_path / "set", tmp_path / "converted.tar")
    for name, field in (("packed.lmdb", "meta.json"), ("converted.tar", "json")):
        with open_reader(tmp_path / name) as reader:
            assert reader.manifest.classes == CLASSES
            assert reader.manifest.splits == {"train": ((0, 10),)}
            assert [record.fields["cls"] for record in reader] == [b"%d" % (number % 3) for number in range(10)]
            assert [record.fields["jpg"] for record in reader] == [picture(number) for number in range(10)]
            assert [json.loads(record.fields[field])["score"] for record in reader] == [row / 4 for row in range(10)]


def test_copy_is_made_once_and_again_for_a_changed_file(tmp_path: Path, cache: Path) -> None:
    path = write_parquet(tmp_path / "images.parquet", table(columns(10)))
    os.utime(path, ns=(10**18, 10**18))  # a recent change would keep the copy from being used
    check(path)
    (copy,) = cache.glob("*.arrow")
    before = copy.stat()
    check(path)
    assert copy.stat() == before
    (listed,) = staging.objects()
    assert (listed.path, listed.url, listed.here) == (copy, "images.parquet", before.st_size)
    assert staging.verify(listed) == []
    staging.clear(listed)
    assert not copy.exists()
    check(path)  # the index is there, the copy is made again
    write_parquet(path, table(columns(6)))
    check(path, 6)


def images(*values: bytes | dict[str, Any] | None) -> Any:
    rows = [{"bytes": value, "path": None} if isinstance(value, bytes) else value for value in values]
    return pa.array(rows, IMAGE)


PNG, WEBP = (save(Image.fromarray(photo(9, 7, 1)), kind) for kind in ("PNG", "WEBP"))
ROWS: list[tuple[dict[str, Any], list[dict[str, bytes]], tuple[str, ...]]] = [  # columns, fields of records, left out
    ({"image": images(PNG, picture(1), WEBP)}, [{"png": PNG}, {"jpg": picture(1)}, {"webp": WEBP}], ()),
    (
        {"image": images(None, picture(1), {"bytes": None, "path": "x"}), "label": pa.array([None, 2, -1], pa.int64())},
        [{}, {"jpg": picture(1), "cls": b"2"}, {"image_path.txt": b"x"}],
        (),
    ),
    (
        {"jpg": pa.array([picture(0)] * 3, pa.large_binary()), "raw": pa.array([b"", b"a", None])},
        [{"jpg": picture(0), "raw.bin": b""}, {"jpg": picture(0), "raw.bin": b"a"}, {"jpg": picture(0)}],
        (),
    ),
    (
        {"image": images(picture(1)), "views": pa.array([[b"b", b"c"]])},
        [{"jpg": picture(1)}],
        ("column 'views' (list<element: binary>) is left out: bytes within other values",),
    ),
]


@pytest.mark.parametrize(("rows", "fields", "left_out"), ROWS)
def test_fields_of_columns(tmp_path: Path, rows: dict[str, Any], fields: list[Any], left_out: tuple[str, ...]) -> None:
    with open_reader(write_parquet(tmp_path / "images.parquet", pa.table(rows))) as reader:
        assert [dict(record.fields) for record in reader] == fields
        assert reader.left_out == left_out  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "case",
    [
        ("label", ["dog", None, " cat", "dog"], {}, [1, -1, 0, 1], ("cat", "dog")),
        ("Category", pa.array(["dog", "", "cat", "dog"]).dictionary_encode(), {}, [1, -1, 0, 1], ("cat", "dog")),
        ("label", ["2", "nan", "10.0", "0"], {}, [2, -1, 10, 0], None),
        ("species", ["dog", "cat", "cat", "dog"], {"label": "species"}, [1, 0, 0, 1], ("cat", "dog")),
        ("species", [7, 3, 3, 0], {"label": "species"}, [7, 3, 3, 0], None),
        ("label_name", ["dog", "cat", "cat", "dog"], {}, [-1] * 4, None),
    ],
)
@pytest.mark.parametrize("write", [write_parquet, write_arrow])
def test_text_labels_become_classes_as_in_a_list(
    tmp_path: Path, write: Any, case: tuple[str, Any, dict[str, str], list[int], tuple[str, ...] | None]
) -> None:
    name, values, names, labels, classes = case
    path = write(tmp_path / f"x.{write.__name__[6:]}", pa.table({"image": columns(4)["image"], name: values}))
    FastDataset(path, foreign={"names": names} if names else None)  # caches the index
    dataset = FastDataset(path, foreign={"names": names} if names else None)
    assert (dataset.targets, dataset.manifest.classes) == (labels, classes)
    told = [line for line in dataset.reader.left_out if "--names label=COLUMN takes one" in line]  # type: ignore[attr-defined]
    assert len(told) == (name == "label_name")
    assert (f"{name}.txt" in dataset.manifest.fields) == (name == "label_name")


@pytest.mark.parametrize(("value", "kind"), [(2.0, "double"), (True, "bool"), (b"cat", "binary"), ([1], "list<")])
def test_a_label_that_is_no_text_and_no_whole_number_is_named(tmp_path: Path, value: object, kind: str) -> None:
    path = write_parquet(tmp_path / "x.parquet", pa.table({"image": columns(2)["image"], "label": [value, value]}))
    dataset = FastDataset(path, fields=["image"])
    words = f"no labels: expected text or whole numbers, found column 'label' ({kind}"
    assert any(line.startswith(words) for line in dataset.reader.left_out)  # type: ignore[attr-defined]


@pytest.mark.parametrize("write", [write_parquet, write_arrow])
def test_columns_of_class_numbers_and_their_names(tmp_path: Path, write: Any) -> None:
    table = {"image": columns(4)["image"], "class_id": [1, 0, -1, 1], "class_name": ["cat", "dog", None, "cat"]}
    path = write(tmp_path / f"x.{write.__name__[6:]}", pa.table(table))
    dataset = FastDataset(path)
    assert (dataset.targets, dataset.classes) == ([1, 0, -1, 1], ["dog", "cat"])
    assert not dataset.reader.left_out  # type: ignore[attr-defined]
    table["class_name"] = ["cat", "dog", None, "dog"]
    dataset = FastDataset(write(path, pa.table(table)))
    assert (dataset.targets, dataset.classes) == ([1, 0, -1, 1], [])
    words = "the names in 'class_name' are not those of the classes: class 1 is 'cat' and 'dog'"
    assert dataset.reader.left_out == (words,)  # type: ignore[attr-defined]
    table["class_id"] = [1, 0, -2, 1]
    dataset = FastDataset(write(path, pa.table(table)))
    assert (dataset.targets, dataset.classes) == ([-1] * 4, [])
    words = "no labels: 'class_id' may be labels, and --names label=COLUMN takes one as such"
    assert dataset.reader.left_out == (words,)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"names": {"label": "gone"}}, "names label=gone: expected a column of text or whole numbers, found label"),
        ({"names": {"image": "label"}}, "expected names label=COLUMN, found names image"),
        ({"label_base": 1}, "expected names label=COLUMN, found others"),
    ],
)
def test_options_of_tables(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    path = write_parquet(tmp_path / "x.parquet", pa.table({name: columns(2)[name] for name in ("image", "label")}))
    with pytest.raises(OptionError, match=words):
        open_reader(path, options)


def test_any_other_type_is_a_member_of_json(tmp_path: Path) -> None:
    day = datetime.datetime(2026, 11, 26, 12, 30)
    rows = columns(2) | {
        "json": pa.array([1, 2], pa.int16()),
        "when": pa.array([day, None], pa.timestamp("us")),
        "binary_mask": pa.array([{"binary": [True]}, None]),
        "word": pa.array(["a", "b"]).dictionary_encode(),
        "odd": pa.array([float("nan"), None]),
        "price": pa.array([decimal.Decimal("1.50"), None]),
    }
    with open_reader(write_arrow(tmp_path / "images.arrow", table(rows))) as reader:
        assert reader.left_out == ()  # type: ignore[attr-defined]
        first, second = (json.loads(record.fields["json"]) for record in reader)
    assert first["json"] == 1
    assert first["when"] == "2026-11-26T12:30:00"
    assert first["binary_mask"] == {"binary": [True]}
    assert (first["word"], first["price"]) == ("a", "1.50")
    assert [second[name] for name in ("when", "binary_mask", "odd", "price")] == [None] * 4


def test_a_list_of_image_files_stays_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(picture(0))
    path = write_parquet(tmp_path / "list.parquet", pa.table({"path": ["a.jpg"], "label": ["cat"]}))
    assert not is_container(path)
    with open_reader(path) as reader:
        assert reader.manifest.classes == ("cat",)


def test_parquet_beside_class_folders_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "set" / "cat").mkdir(parents=True)
    (tmp_path / "set" / "cat" / "a.jpg").write_bytes(picture(0))
    write_parquet(tmp_path / "set" / "notes.parquet", pa.table({"path": ["a.jpg"]}))
    assert not is_container(tmp_path / "set")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"_data_files": [{"filename": "../data.arrow"}]}, "impossible name '../data.arrow'"),
        ({"_data_files": [{"filename": "data.bin"}]}, "which is no .arrow file"),
        ({"_data_files": []}, "'_data_files' is no list with entries"),
        (
            {"_data_files": [{"filename": "d.arrow"}], "_indices_files": [{"filename": "i.arrow"}]},
            "a selection of others",
        ),
        ([], "is no JSON object"),
    ],
)
def test_impossible_states(tmp_path: Path, state: Any, words: str) -> None:
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(ContainerError, match=words):
        open_reader(tmp_path)


def test_refused_tables(tmp_path: Path) -> None:
    compressed = write_arrow(tmp_path / "c.arrow", table(columns(300)), per_batch=300, compression="zstd")
    with pytest.raises(ContainerError, match="is compressed: save it without compression"):
        open_reader(compressed)
    write_arrow(tmp_path / "a-0.arrow", table(columns(2)))
    write_arrow(tmp_path / "a-1.arrow", table({"image": columns(2)["image"]}))
    with pytest.raises(ContainerError, match="other columns than"):
        open_reader(tmp_path / "a-*.arrow")
    wrong = columns(4) | {"label": pa.array([0, 1, 2, 3], pa.int64())}
    with pytest.raises(
        ContainerError,
        match="row 3 of column 'label': the label must be a class number 0 to 2, or -1 for none, found 3",
    ):
        open_reader(write_arrow(tmp_path / "wrong.arrow", table(wrong)))
    (tmp_path / "no.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match="not a Parquet file"):
        open_reader(tmp_path / "no.parquet")
    with pytest.raises(ContainerError, match="no column can be read"):
        open_reader(write_arrow(tmp_path / "bare.arrow", pa.table({"label": [1, 2]})))
