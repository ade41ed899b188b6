"""The order of classes, classes that may be a mistake, files instead of paths that are not there, strings."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listings import make, numbers, paths

from iofast import pack
from iofast.errors import OptionError, SourceError
from iofast.source import arrays
from iofast.source.arrays import Strings, stable_order
from iofast.source.classes import instead_of
from iofast.source.options import SourceOptions
from iofast.source.scan import scan


def test_natural_order_puts_9_before_10_and_both_orders_warn(tmp_path: Path) -> None:
    make(tmp_path, ["10/a.jpg", "9/a.jpg", "x2/a.jpg", "x10/a.jpg"])
    natural = scan(tmp_path, SourceOptions(class_order="natural"))
    assert natural.classes == ("9", "10", "x2", "x10")
    assert paths(natural) == ["9/a.jpg", "10/a.jpg", "x2/a.jpg", "x10/a.jpg"]
    assert numbers(natural) == [0, 1, 2, 3]
    assert scan(tmp_path).classes == ("10", "9", "x10", "x2")
    for source in (natural, scan(tmp_path)):
        assert "lexicographic and natural class order differ: class 0 is '10' or '9'" in source.warnings[0]


def test_class_file_gives_the_order_and_must_match(tmp_path: Path) -> None:
    make(tmp_path, ["cat/a.jpg", "dog/a.jpg"])
    options = SourceOptions(class_order="file")
    with pytest.raises(SourceError, match=r"needs a class per line in .*classes\.txt, which does not exist$"):
        scan(tmp_path, options)
    (tmp_path / "classes.txt").write_text("dog\ncat\n\n")
    source = scan(tmp_path, options)
    assert (source.classes, paths(source)) == (("dog", "cat"), ["dog/a.jpg", "cat/a.jpg"])
    for text, message in [
        ("dog\n", "it lacks cat"),
        ("dog\nCat\n", "it lacks cat; it has 'Cat' for 'cat'"),
        ("dog\n\ncat\n", "line 2: empty"),
        ("dog\ncat\ndog\n", "line 3: class 'dog' again, as in line 1"),
        ("", "names no class"),
    ]:
        (tmp_path / "classes.txt").write_text(text)
        with pytest.raises(SourceError, match=message):
            scan(tmp_path, options)
    (tmp_path / "classes.txt").write_text("dog\ncow\ncat\n")
    assert numbers(scan(tmp_path, options)) == [0, 2]
    assert scan(tmp_path, options).warnings == ("classes of classes.txt without images: cow (their numbers are kept)",)
    with pytest.raises(SourceError, match="needs class folders"):
        scan(make(tmp_path / "flat", ["a.jpg"]), options)
    with pytest.raises(OptionError, match="class_order must be one of"):
        SourceOptions(class_order="random")


def test_classes_that_may_be_none_or_one_are_named(tmp_path: Path) -> None:
    source = scan(make(tmp_path, [f"{name}/1.jpg" for name in ("Masks", "Cat", "cat ", "cafe\u0301", "caf\xe9")]))
    pairs = r"'cafe\u0301' and 'caf\xe9' and 1 more pairs"
    assert source.warnings[0] == f"classes that look alike are different classes: {pairs}"
    assert source.warnings[1].startswith("folders Masks taken as classes, though such folders usually have the images")


@pytest.mark.parametrize(
    ("written", "there"),
    [
        ("a/one.jpg", "a/One.JPG"),
        ("A\\one.jpg", "a/One.JPG"),
        ("a/two", "a/two.png"),
        ("a/two.jpeg", "a/two.png"),
        ("a/cafe\u0301.jpg", "a/caf\u00e9.jpg"),
        ("a/three.jpg", None),
        ("b/one.jpg", None),
    ],
)
def test_the_file_that_is_there_is_named(written: str, there: str | None, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("One.JPG", "two.png", "caf\u00e9.jpg"):
        (tmp_path / "a" / name).touch()
    wanted = "" if there is None else f"; found {f'{tmp_path}/{there}'!a}"
    assert instead_of(os.fsencode(f"{tmp_path}/{written}")) == wanted


def test_packing_names_it(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "a").mkdir()
    for number in range(3):
        Image.new("RGB", (32, 32)).save(tmp_path / "a" / f"{number}.jpg")
    (tmp_path / "list.csv").write_text("path,label\na/0.jpg,0\na/1.jpg,1\na/2.JPG,1\n")
    pack(tmp_path / "list.csv", tmp_path / "out.lmdb", max_errors=1)
    assert f"found '{tmp_path}/a/2.jpg'" in (tmp_path / "out.lmdb.errors.jsonl").read_text()


@pytest.mark.parametrize("step", [3, 1 << 16])
@given(strings=st.lists(st.binary(max_size=9), max_size=30))
def test_strings_come_back(step: int, strings: list[bytes]) -> None:
    gathered = Strings.gather(strings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "STEP", step)
        assert list(gathered) == strings
        assert list(pickle.loads(pickle.dumps(gathered))) == strings
    assert [gathered[row] for row in range(len(strings))] == strings
    assert bytes(gathered.blob) == b"".join(string + b"\0" for string in strings)


@given(st.lists(st.integers(0, 4), max_size=30))
def test_order(ranks: list[int]) -> None:
    counts, order = stable_order(np.array(ranks, np.int32), 5)
    assert counts == [ranks.count(rank) for rank in range(5)]
    assert (order is None) == (ranks == sorted(ranks))
    if order is not None:
        assert order.tolist() == np.argsort(ranks, kind="stable").tolist()


def test_strings_of_bytes_that_end_with_zero() -> None:
    assert list(Strings.split(b"a\0\0bc\0")) == [b"a", b"", b"bc"]
    assert len(Strings.split(b"")) == 0
