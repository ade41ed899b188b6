"""Manifest files as sources: CSV, TSV, JSON lines, Parquet, and their errors."""

import builtins
import json
import os
from pathlib import Path
from typing import Any

import pytest
from listings import numbers

from iofast.errors import SourceError
from iofast.source import arrays
from iofast.source.listing import Listing
from iofast.source.options import SourceOptions
from iofast.source.scan import scan


@pytest.fixture(autouse=True, params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test reads its manifest in one step, and as a large one in many."""
    if request.param == "large":
        monkeypatch.setattr(arrays, "STEP", 2)


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def paths(source: Listing) -> list[bytes]:
    return [source.path(index) for index in range(len(source))]


def test_csv_gives_paths_labels_and_fields(tmp_path: Path) -> None:
    text = 'path,label,caption,boxes.json\nb/1.jpg,dog,"a dog, asleep","[[1, 2]]"\nb/0.jpg,cat,,\n\n../x.jpg,,ä\n'
    text = text.replace("../x.jpg,,ä", "../x.jpg,,ä,[]")
    source = scan(write(tmp_path, "m.csv", "\ufeff" + text))
    assert source.kind == "manifest"
    assert source.root == tmp_path
    assert source.classes == ("cat", "dog")
    assert paths(source) == [b"b/1.jpg", b"b/0.jpg", b"../x.jpg"]
    assert numbers(source) == [1, 0, -1]
    assert source.fields == ("caption.txt", "boxes.json")
    assert source.extra(0) == {"caption.txt": b"a dog, asleep", "boxes.json": b"[[1, 2]]"}
    assert source.extra(1) == {}
    assert source.extra(2) == {"caption.txt": "ä".encode(), "boxes.json": b"[]"}
    assert source.splits == (("all", 0, 3),)
    assert source.file(0) == os.fsencode(tmp_path / "b" / "1.jpg")


def test_json_lines_keep_types(tmp_path: Path) -> None:
    rows = [
        {"image": "1.jpg", "target": 4, "score": 0.5, "boxes": [[1, 2]], "note": "x", "mixed": "y", "seg.png": "AA"},
        {"image": "2.jpg", "target": -1, "score": None, "note": None, "mixed": 3, "Late Column": True},
    ]
    source = scan(write(tmp_path, "m.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n"))
    assert numbers(source) == [4, -1]
    assert source.extra(0) == {
        "score.json": b"0.5",
        "boxes.json": b"[[1, 2]]",
        "note.txt": b"x",
        "mixed.json": b'"y"',
        "seg.png": b"AA",
    }
    assert source.extra(1) == {"mixed.json": b"3", "late_column.json": b"true"}


def test_labels_of_several_kinds(tmp_path: Path) -> None:
    cases = [
        (["2", "0", "10"], [2, 0, 10], None),
        (["007", "1"], [0, 1], ("007", "1")),
        (["1", "x"], [0, 1], ("1", "x")),
        (["2.0", "10.", " 1.0 "], [2, 10, 1], None),
        (["2.0", "nan", "NaN", "", "-1.0"], [2, -1, -1, -1, -1], None),
        (["1.5", "2.0"], [0, 1], ("1.5", "2.0")),
        ([" cat", "cat ", "nan"], [0, 0, -1], ("cat",)),
    ]
    for number, (labels, expected, classes) in enumerate(cases):
        rows = "".join(f"{index}.jpg,{label}\n" for index, label in enumerate(labels))
        source = scan(write(tmp_path, f"{number}.csv", "path,label\n" + rows))
        assert (numbers(source), source.classes) == (expected, classes)
    mixed = scan(write(tmp_path, "m.jsonl", '{"path": "a", "label": 1}\n{"path": "b", "label": "x"}\n{"path": "c"}\n'))
    assert (numbers(mixed), mixed.classes) == ([0, 1, -1], ("1", "x"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.csv", "Path,Label,SPLIT\na 1.jpg,cat,val \nb.JPEG,dog,val\n"),
        ("m.csv", "File_Name;Category;split\na 1.jpg;cat;val\nb.JPEG;dog;val\n"),
        ("m.csv", "\na 1.jpg,cat\nb.JPEG,dog\n"),
        ("m.csv", "a 1.jpg;cat\nb.JPEG;dog\n"),
        ("m.txt", "a 1.jpg cat\n\nb.JPEG  dog\n"),
        ("m.tsv", "a 1.jpg\tcat\nb.JPEG\tdog\n"),
        ("m.jsonl", '{"PATH": "a 1.jpg", "Class": "cat"}\n{"PATH": "b.JPEG", "Class": "dog"}\n'),
    ],
)
def test_names_in_any_case_and_lists_without_a_header(tmp_path: Path, name: str, text: str) -> None:
    source = scan(write(tmp_path, name, text))
    assert (paths(source), numbers(source), source.classes) == ([b"a 1.jpg", b"b.JPEG"], [0, 1], ("cat", "dog"))
    assert source.splits == ((("val" if "plit" in text.lower() else "all"), 0, 2),)
    assert (source.fields, source.warnings) == ((), ())


def test_paths_alone_have_no_labels_and_three_columns_need_names(tmp_path: Path) -> None:
    source = scan(write(tmp_path, "m.txt", "my photo.jpg\nb.jpg\n"))
    assert (paths(source), numbers(source), source.classes) == ([b"my photo.jpg", b"b.jpg"], [-1, -1], None)
    with pytest.raises(SourceError, match=r"line 1: expected a path and a label, or names of columns, found 3 values"):
        scan(write(tmp_path, "m.csv", "a.jpg,1,2\n"))


def test_columns_that_may_be_labels_are_named_with_the_option(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv", "path,class_id,label_count\na.jpg,1,cat\n")
    option = "no labels: 'class_id', 'label_count' may be labels, and --label-column takes one as such"
    assert scan(path).warnings == (option,)
    assert not scan(path, SourceOptions(label_column="class_id")).warnings


@pytest.mark.parametrize(
    ("rows", "classes", "warning"),
    [
        ("0,dog 1,cat 0,dog", ("dog", "cat"), ""),
        ("1,cat 0,dog ,", ("dog", "cat"), ""),
        ("0,dog 1,cat 0,cat", None, "class 0 is 'dog' and 'cat'"),
        ("0,dog 1,dog", None, "classes 0 and 1 are both 'dog'"),
        ("1,dog 2,cat", None, "class 0 has none"),
        ("0,dog 1,", None, "class 1 has none"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_columns_of_class_numbers_and_their_names(
    tmp_path: Path, rows: str, classes: tuple[str, ...] | None, warning: str, suffix: str
) -> None:
    cells = [row.split(",") for row in rows.split(" ")]
    text = "path,Class_ID,label_name\n" + "".join(f"{place}.jpg,{','.join(row)}\n" for place, row in enumerate(cells))
    if suffix == "jsonl":
        members = [{"path": f"{place}.jpg", "Class_ID": int(row[0] or -1)} for place, row in enumerate(cells)]
        text = "".join(
            f"{json.dumps(each | {'label_name': row[1] or None})}\n" for each, row in zip(members, cells, strict=True)
        )
    source = scan(write(tmp_path, f"m.{suffix}", text))
    assert numbers(source) == [int(row[0] or -1) for row in cells]
    assert (source.classes, source.fields) == (classes, () if classes else ("label_name.txt",))
    told = (f"the names in 'label_name' are not those of the classes: {warning}",) if warning else ()
    assert (source.warnings, source.class_order) == (told, "file" if classes else "lexicographic")


@pytest.mark.parametrize(
    "rows",
    [
        [{"category_id": [1, 5], "category_name": ["cat", "dog"]}],
        [{"category_id": -2, "category_name": "cat"}],
        [{"category_id": 0, "category_name": "cat"}, {"category_id": 1 << 31, "category_name": "dog"}],
        [{"category_id": "n02", "category_name": "cat"}],
    ],
)
def test_columns_that_are_no_class_numbers_are_fields(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """Nobody has said that they are labels."""
    lines = [json.dumps({"path": f"{number}.jpg", **row}) for number, row in enumerate(rows)]
    source = scan(write(tmp_path, "m.jsonl", "\n".join(lines) + "\n"))
    assert (numbers(source), source.classes) == ([-1] * len(rows), None)
    (warning,) = source.warnings
    assert warning.startswith("no labels: 'category_id', 'category_name' may be labels")


def test_names_of_class_numbers_that_look_alike(tmp_path: Path) -> None:
    source = scan(write(tmp_path, "m.csv", "path,class_id,class_name\na.jpg,0,Cat\nb.jpg,1,cat\n"))
    assert source.warnings == ("classes that look alike are different classes: 'Cat' and 'cat'",)


def test_class_order_of_text_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv", "path,label\na.jpg,c10\nb.jpg,c9\n")
    assert scan(path).classes == ("c10", "c9")
    assert "differ" in scan(path).warnings[0]
    assert numbers(scan(path, SourceOptions(class_order="natural"))) == [1, 0]
    write(tmp_path, "classes.txt", "c9\nother\nc10\n")
    source = scan(path, SourceOptions(class_order="file"))
    assert (source.classes, numbers(source)) == (("c9", "other", "c10"), [2, 0])
    assert source.warnings == ("classes of classes.txt without images: other (their numbers are kept)",)
    write(tmp_path, "classes.txt", "c9\n")
    with pytest.raises(SourceError, match=r"classes\.txt does not match the classes: it lacks c10"):
        scan(path, SourceOptions(class_order="file"))


def test_class_file_names_the_classes_of_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv", "path,label\na.jpg,1\nb.jpg,2\n")
    write(tmp_path, "classes.txt", "cat\ndog\n")
    with pytest.raises(SourceError, match="line 3: the label must be a class number 0 to 1, or -1 for none, found 2"):
        scan(path, SourceOptions(class_order="file"))
    write(tmp_path, "classes.txt", "cat\ndog\ncow\n")
    source = scan(path, SourceOptions(class_order="file"))
    assert (source.classes, numbers(source)) == (("cat", "dog", "cow"), [1, 2])


def test_split_column_orders_the_rows(tmp_path: Path) -> None:
    rows = [("1.jpg", "test"), ("2.jpg", "extra"), ("3.jpg", "train"), ("4.jpg", "test"), ("5.jpg", "val")]
    text = "path,split,n\n" + "".join(f"{path},{split},{path[0]}\n" for path, split in rows)
    source = scan(write(tmp_path, "m.csv", text))
    assert source.splits == (("train", 0, 1), ("val", 1, 2), ("test", 2, 4), ("extra", 4, 5))
    assert paths(source) == [b"3.jpg", b"5.jpg", b"1.jpg", b"4.jpg", b"2.jpg"]
    assert [source.extra(index)["n.txt"] for index in range(5)] == [b"3", b"5", b"1", b"4", b"2"]
    shuffled = source.shuffled(3)
    assert shuffled.splits == source.splits
    assert {shuffled.path(2), shuffled.path(3)} == {b"1.jpg", b"4.jpg"}


def test_absolute_paths_and_a_row_index_of_pandas(tmp_path: Path) -> None:
    source = scan(write(tmp_path, "m.TSV", "\tfilename\tclass\n0\t/data/a b.jpg\t3\n"))
    assert (source.file(0), numbers(source), source.classes, source.fields) == (b"/data/a b.jpg", [3], None, ())
    assert source.warnings == ("columns without a name (a row index) left out: 1",)


def test_given_columns_win_over_usual_ones(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv", "path,p,label,l,s\nx,1.jpg,y,cat,dev\n")
    options = SourceOptions(path_column="p", label_column="l", split_column="s")
    source = scan(path, options)
    assert (paths(source), source.classes, source.splits) == ([b"1.jpg"], ("cat",), (("dev", 0, 1),))
    assert source.extra(0) == {"path.txt": b"x", "label.txt": b"y"}


def test_paths_that_are_not_utf8_work_and_other_text_does_not(tmp_path: Path) -> None:
    assert scan(write(tmp_path, "m.csv", b"path\n\xe9.jpg\n")).path(0) == b"\xe9.jpg"
    with pytest.raises(SourceError, match="line 3: column label is not UTF-8"):
        scan(write(tmp_path, "l.csv", b"path,label\n1.jpg,a\n2.jpg,\xe9\n"))
    with pytest.raises(SourceError, match="line 2: column 'note' is not UTF-8"):
        scan(write(tmp_path, "n.csv", b"path,note\n1.jpg,\xe9\n"))


BAD = [
    ("m.csv", "", "has no rows"),
    ("m.csv", "path,label\n", "has no rows"),
    ("m.csv", "photo,label\n1.jpg,2\n", "has no column path or file or .* or image: found 'photo', 'label'"),
    ("m.csv", "path,file\n1.jpg,2\n", "several path columns, choose one: path, file"),
    ("m.csv", "path,a,a\n1.jpg,2,3\n", "two columns 'a'"),
    ("m.csv", "path,label\n1.jpg,2\n2.jpg\n", "line 3: expected 2 columns as in the first line, found 1"),
    ("m.csv", 'path,label\n"1.jpg,2\n', r"m\.csv, line 2: unexpected end of data"),
    ("m.csv", "path,label\n1.jpg,2\n,3\n", "line 3: the path is empty"),
    ("m.csv", "path,label\n1.jpg,2\nx\0y.jpg,3\nz.jpg,0\n", "line 3: the path has a NUL byte"),
    ("m.csv", "path,label\n1.jpg,-2\n", "line 2: the label must be a class number 0 to"),
    ("m.csv", "path,label\n1.jpg,2147483648\n", "line 2: the label must be a class number 0 to"),
    ("m.csv", "path,split\n1.jpg,train\n2.jpg,\n", "line 3: expected the name of a split"),
    ("m.csv", "path,split\n1.jpg,all\n", "line 2: expected the name of a split, .* not 'all'"),
    ("m.csv", "path,split\n1.jpg,../x\n", "line 2: split name '../x' is not"),
    ("m.csv", "path,标签\n1.jpg,x\n", "column '标签' cannot become a field"),
    ("m.csv", "path,a..b\n1.jpg,x\n", r"column 'a\.\.b' cannot become a field: field name 'a\.\.b'"),
    ("m.csv", "path,Note,note\n1.jpg,x,y\n", r"columns Note, note would both become the field 'note\.txt'"),
    ("m.jsonl", '{"path": "1.jpg"}\n[1]\n', "line 2: expected a JSON object, found list"),
    ("m.jsonl", '{"path": "1.jpg"}\n\n{"path": }\n', "line 3: not a JSON object: Expecting value at column 10$"),
    ("m.jsonl", b'{"path": "\xff"}\n', "line 1: not a JSON object"),
    ("m.jsonl", '{"path": "1.jpg", "x": NaN}\n', "line 1: not a JSON object: NaN is not JSON"),
    ("m.jsonl", '{"path": "\\ud800"}\n', "line 1: column 'path': 'utf-8' codec can't encode"),
    ("m.jsonl", "[" * 100_000 + "\n", "line 1: not a JSON object: maximum recursion"),
    ("m.jsonl", '{"path": 3}\n', "line 1: the path is not text"),
    ("m.jsonl", '{"path": "a"}\n{"label": 3}\n', "line 2: the path is empty"),
    ("m.jsonl", '{"path": "a", "label": true}\n', "line 1: the label must be text or an integer, found true"),
    ("m.jsonl", '{"path": "a", "label": [1, 2]}\n', r"line 1: the label must be text or an integer, found \[1, 2\]"),
    ("m.parquet", b"PAR1 but no more", "is not a Parquet file that can be read|needs pyarrow"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_errors_name_file_and_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        scan(write(tmp_path, name, content))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv", "path,label\n1.jpg,2\n")
    with pytest.raises(SourceError, match="has no label column 'species': found 'path', 'label'"):
        scan(path, SourceOptions(label_column="species"))


def test_one_column_cannot_be_two(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv", "path,label\n1.jpg,2\n")
    for options in (SourceOptions(label_column="path"), SourceOptions(split_column="label")):
        with pytest.raises(SourceError, match="one column cannot be two"):
            scan(path, options)


def test_parquet_reads_as_json_lines_do(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = {"path": ["1.jpg", "2.jpg"], "label": [1.0, None], "boxes": [[1, 2], None], "raw": [b"\0\xff", None]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "m.parquet")
    source = scan(tmp_path / "m.parquet")
    assert paths(source) == [b"1.jpg", b"2.jpg"]
    assert numbers(source) == [1, -1]
    assert source.extra(0) == {"boxes.json": b"[1, 2]", "raw.bin": b"\0\xff"}
    assert source.extra(1) == {}
    parquet.write_table(pyarrow.table({"path": ["1.jpg", ""]}), tmp_path / "bad.parquet")
    with pytest.raises(SourceError, match=r"bad\.parquet, row 2: the path is empty"):
        scan(tmp_path / "bad.parquet")


def test_parquet_without_pyarrow_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: object, **named: object) -> object:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SourceError, match="needs pyarrow: pip install pyarrow"):
        scan(write(tmp_path, "m.parquet", b"PAR1"))
