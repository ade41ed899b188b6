"""Text files of users: UTF-8 is read, other encodings are an error, and a pipe is an error instead of a wait."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from folder_images import image

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


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_pipe_is_no_manifest(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"pipe{suffix}"
    os.mkfifo(path)
    with pytest.raises(SourceError, match=r"cannot read manifest .*: it is not a file"):
        scan(path)


def test_a_pipe_is_no_list_of_classes(tmp_path: Path) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "1.jpg").write_bytes(image(8, 8))
    os.mkfifo(tmp_path / "set" / "classes.txt")
    with pytest.raises(SourceError, match=r"a class per line in .*, which cannot be read: it is not a file"):
        scan(tmp_path / "set", SourceOptions(class_order="file"))


def test_a_pipe_is_no_shard(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar", "a.tfrecord", "b.tfrecord"):
        os.mkfifo(tmp_path / name)
    for pattern in ("{a,b}.tar", "{a,b}.tfrecord"):
        with pytest.raises(SourceError, match="is not a file"):
            open_reader(f"{tmp_path}/{pattern}")


@pytest.fixture
def forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unreadable folder, simulated because root can read all folders."""
    folder = tmp_path / "locked"
    folder.mkdir()
    real = os.stat

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | os.PathLike) and Path(os.path.dirname(path)) == folder:
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat)
    return folder


@pytest.mark.parametrize("command", [["info"], ["cat", "0"], ["pack", "out.lmdb"]], ids=["info", "cat", "pack"])
def test_a_folder_that_cannot_be_read(
    forbidden: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(forbidden.parent)
    assert main([command[0], str(forbidden), *command[1:]]) == 1
    assert f"error: folder {forbidden} cannot be read: permission denied" in capsys.readouterr().err
