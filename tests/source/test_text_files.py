"""Text files of users: UTF-8 is read, other encodings are an error, and a pipe is an error instead of a wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iofast.cli import main
from iofast.errors import SourceError
from iofast.opening import open_reader
from iofast.source.classes import read_class_file
from iofast.source.listing import SourceOptions
from iofast.source.scan import scan

OTHERS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("name", ["m.csv", "m.tsv", "m.jsonl"])
def test_manifests(tmp_path: Path, encoding: str, name: str) -> None:
    text = "path,label,caption\r\na/ä.jpg,katze,größer\r\nb/2.jpg,hund,\r\n"
    if name == "m.tsv":
        text = text.replace(",", "\t")
    if name == "m.jsonl":
        rows = '{"path": "a/ä.jpg", "label": "katze", "caption": "größer"}', '{"path": "b/2.jpg", "label": "hund"}'
        text = "\n".join(rows) + "\n"
    (tmp_path / name).write_bytes(text.encode(encoding))
    source = scan(tmp_path / name)
    assert [source.path(index) for index in range(2)] == ["a/ä.jpg".encode(), b"b/2.jpg"]
    assert source.classes == ("hund", "katze")
    assert source.extra(0) == {"caption.txt": "größer".encode()}
    for other in OTHERS:
        (tmp_path / name).write_bytes(text.encode(other))
        with pytest.raises(SourceError, match=f"cannot read manifest .*{name}: its text is UTF-16 or UTF-32: save it"):
            scan(tmp_path / name)


def test_lists_of_classes(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("zebra\r\näffchen\r\n")
    assert read_class_file(tmp_path / "classes.txt") == ("zebra", "äffchen")
    (tmp_path / "classes.txt").write_text("zebra\r\näffchen\r\n", encoding="utf-16")
    with pytest.raises(SourceError, match="its text is UTF-16 or UTF-32: save it as UTF-8"):
        read_class_file(tmp_path / "classes.txt")


PIPES: dict[str, Callable[[Path], object]] = {
    **dict.fromkeys(("m.csv", "m.tsv", "m.jsonl", "m.parquet"), scan),
    "classes.txt": lambda path: scan(path.parent, SourceOptions(class_order="file")),
    **dict.fromkeys(("{a,b}.tar", "{a,b}.tfrecord"), open_reader),
}


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_an_error_and_no_wait(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").touch()
    for file in {name.replace("{a,b}", letter) for letter in "ab"}:
        os.mkfifo(tmp_path / file)
    with pytest.raises(SourceError, match="is not a file"):
        PIPES[name](tmp_path / name)


@pytest.mark.parametrize("command", [["info"], ["cat", "0"], ["pack", "out.lmdb"]], ids=["info", "cat", "pack"])
def test_a_folder_that_cannot_be_read(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulated, because root can read all folders."""
    folder, real = tmp_path / "locked", os.stat
    folder.mkdir()

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | os.PathLike) and Path(os.path.dirname(path)) == folder:
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.chdir(tmp_path)
    assert main([command[0], str(folder), *command[1:]]) == 1
    assert f"error: folder {folder} cannot be read: permission denied" in capsys.readouterr().err
