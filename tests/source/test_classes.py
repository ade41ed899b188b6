"""The order of classes, and classes that may be a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from listings import make, numbers, paths

from iofast.errors import OptionError, SourceError
from iofast.source.listing import SourceOptions
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
