"""Files with unusual suffixes, known by their first bytes; other encodings than UTF-8 and pipes are errors."""

import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_sets import picture
from listings import paths

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.cli import main
from iofast.errors import DecodeError, SourceError
from iofast.opening import open_reader
from iofast.source.classes import read_class_file
from iofast.source.folder import FolderReader
from iofast.source.options import SourceOptions
from iofast.source.scan import scan


def npy(array: np.ndarray[Any, Any]) -> bytes:
    out = BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_images_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    files = {
        "a/noext": picture(0, "PNG"),
        "a/photo.jpg_large": picture(0, "JPEG"),
        "a/0.jpe": b"by its suffix",
        "a/scan.001": picture(0, "TIFF"),
        "a/x.anim": picture(0, "GIF"),
        "a/y.bitmap": picture(0, "BMP"),
        "a/z.map": picture(0, "PPM"),
        "b/1.jpg": picture(0, "JPEG"),
        "b/notes": b"BM is how this text begins",
        "b/results.dat": b"P5 is how this one begins",
        "b/empty": b"",
        "b/raw.NEF": picture(0, "TIFF"),
        "b/2000.jp2": b"\0\0\0\x0cjP  \r\n\x87\n and more",
        "b/xl": b"\xff\x0a",
        "b/features.npy": npy(np.zeros((4, 6, 3), np.uint8)),
        "b/caption.txt": picture(0, "PNG"),
        "b/.hidden": picture(0, "PNG"),
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "b" / "pipe")
    source = scan(tmp_path)
    names = ["0.jpe", "noext", "photo.jpg_large", "scan.001", "x.anim", "y.bitmap", "z.map"]
    assert paths(source) == [f"a/{name}" for name in names] + ["b/1.jpg", "b/xl"]
    assert source.notes == (
        "images with unusual names, known by their first bytes: 2 without a suffix (a/noext, b/xl), "
        "1 .001 (a/scan.001), 1 .anim (a/x.anim), 1 .bitmap (a/y.bitmap), 1 .jpg_large (a/photo.jpg_large), "
        "1 .map (a/z.map)",
        "files that are no images left out: 3 without a suffix (b/empty, b/notes, b/pipe), "
        "1 .dat (b/results.dat), 1 .npy (b/features.npy), 1 .txt (b/caption.txt)",
    )
    assert source.warnings == (
        "images left out, of formats that are not supported (convert them first): 1 JPEG 2000 (b/2000.jp2), "
        "1 camera raw (b/raw.NEF)",
    )
    reader = FolderReader(tmp_path)
    assert reader.locate(np.arange(len(reader))).width.tolist() == [0, *[48] * 7, 0]


def test_many_files_without_a_suffix_stay_in_order(tmp_path: Path) -> None:
    data = {f"{number:04d}": picture(0, "PNG") if number % 3 else b"no image" for number in range(400)}
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)
    source = scan(tmp_path)
    assert paths(source) == [name for name, content in data.items() if content != b"no image"]
    assert source.notes[-1] == "files that are no images left out: 134 without a suffix (0000, 0003, 0006, …)"


def test_a_folder_of_images_that_are_not_supported_names_them(tmp_path: Path) -> None:
    (tmp_path / "1.jp2").write_bytes(b"\0\0\0\x0cjP  \r\n\x87\n and more")
    with pytest.raises(SourceError, match=r"images of formats that are not supported: 1 JPEG 2000 \(1\.jp2\)"):
        scan(tmp_path)


@pytest.mark.parametrize("options", [{}, {"cache": "device"}])
def test_a_format_that_is_not_supported_is_named_at_loading(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "1.jpg").write_bytes(b"\0\0\0\x0cjP  \r\n\x87\n and more")
    dataset = FastDataset(tmp_path)
    loader = FastLoader(dataset, transform=[T.Resize((8, 8))], num_workers=1, **options)
    for take in (lambda: dataset[0], lambda: next(iter(loader))):
        with pytest.raises(DecodeError, match=r"1\.jpg: .*\(JPEG 2000: not supported; convert it first\)"):
            take()


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
