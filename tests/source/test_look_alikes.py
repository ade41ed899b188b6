"""A path in a list that is not there names the file that is: other case, slashes, suffix, composition."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iofast import pack
from iofast.source.classes import instead_of


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
