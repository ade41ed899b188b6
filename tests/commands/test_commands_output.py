"""The output of commands: with any names in a file, and on any terminal."""

import io
import os
import sys
from pathlib import Path

import pytest
from command_line import CommandLine
from container_sets import SUFFIXES
from PIL import Image

from iofast import FastDataset, FastLoader, open_reader, open_writer, pack
from iofast.cli import main

ESCAPE = "\x1b[2J\x1b]0;owned\x07"
HOSTILE = f"red{ESCAPE}\nsecond line\u202egnp"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number in range(3):
        path = tmp_path / "images" / "größe" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 10 + number)).save(path)
    return tmp_path / "images"


def run(*arguments: object, encoding: str = "utf-8") -> tuple[int, bytes, bytes]:
    """Return exit status, standard output and standard error of `iofast ARGUMENTS` with this encoding."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as ended:  # argparse ends the process
            status = int(ended.code or 0)
    return status, out.buffer.getvalue(), err.buffer.getvalue()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_in_a_container_cannot_control_the_terminal(suffix: str, tmp_path: Path, iofast: CommandLine) -> None:
    path = tmp_path / f"x{suffix}"
    with open_writer(path, classes=[HOSTILE, "b"], recipe={"note": HOSTILE, "list": [HOSTILE]}) as writer:
        writer.write({"cls": 0, "txt": HOSTILE})
    for command in (["info", path], ["cat", path, 0], ["verify", path]):
        status, text, error = iofast(*command)
        assert status == 0
        assert all(character.isprintable() for line in (text + error).split("\n") for character in line)
        assert "second line" not in [line.strip() for line in text.splitlines()]
    assert "red\\x1b[2J" in iofast("info", path).out


def test_a_path_in_an_error_or_warning_cannot_control_the_terminal(
    images: Path, tmp_path: Path, iofast: CommandLine
) -> None:
    target = tmp_path / f"x{ESCAPE}.lmdb"
    packing = ["pack", images, target, "--workers", 1]
    results = [iofast(*line) for line in (["info", tmp_path / ESCAPE], packing, ["cat", target, 9], ["verify", target])]
    assert not [result for result in results if "\x1b" in result.out + result.err]
    assert "\\x1b[2J" in results[0].err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding(images: Path, tmp_path: Path, encoding: str) -> None:
    pack(images, tmp_path / "out.lmdb", resize=8, workers=1)
    for arguments in ([tmp_path / "out.lmdb"], [images], [tmp_path / "out.lmdb", "--json"]):
        assert run("info", *arguments, encoding=encoding)[::2] == (0, b"")
    shown = run("info", images, encoding=encoding)[1].decode(encoding)
    assert ("gr\\xf6\\xdfe" if encoding == "ascii" else "größe") in shown
    assert ("###" in shown) == (encoding != "utf-8")


@pytest.mark.parametrize("suffix", [*SUFFIXES, "/"])
def test_a_target_whose_name_is_not_text(images: Path, tmp_path: Path, suffix: str) -> None:
    target = os.fsdecode(os.fsencode(tmp_path) + b"/out\xff" + suffix.encode())
    try:
        os.close(os.open(target, os.O_CREAT))
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    os.unlink(target)
    status, text, error = run("convert", images, target)
    assert (status, error) == (0, b"")
    assert b"/out\\udcff" in text
    with open_reader(target) as reader:
        assert len(list(reader)) == 3
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".partial")]
    for arguments in (["info", target], ["verify", target], ["cat", target, "0"]):
        assert run(*arguments)[::2] == (0, b"")


@pytest.mark.parametrize(
    ("labels", "packed", "verified"),
    [
        (["cat", "dog"], "", ""),
        (["", "nan"], "  labels     none", "  note: records without a label: 2 of 2"),
        (["7.0", ""], "  unlabelled 1 of 2", "  note: records without a label: 1 of 2"),
    ],
)
def test_missing_labels_are_said(
    tmp_path: Path, iofast: CommandLine, caplog: pytest.LogCaptureFixture, labels: list[str], packed: str, verified: str
) -> None:
    for number in range(len(labels)):
        Image.new("RGB", (8, 8 + number)).save(tmp_path / f"{number}.png")
    rows = [f"{number}.png,{label}" for number, label in enumerate(labels)]
    (tmp_path / "list.csv").write_text("\n".join(["path,Label", *rows]))
    out = tmp_path / "out.lmdb"
    summary = iofast("pack", tmp_path / "list.csv", out, "--workers", 1).out.splitlines()
    assert [line for line in summary if line.startswith(("  labels", "  unlabelled"))] == [packed][: bool(packed)]
    notes = [line for line in iofast("verify", out).out.splitlines() if line.startswith("  note")]
    assert notes == [verified][: bool(verified)]
    dataset, none = FastDataset(out), packed == "  labels     none"
    assert repr(dataset).endswith(", without labels") == none
    for given in (dataset, FastDataset(out, fields=["image"])):
        FastLoader(given, 1)
    assert ["no labels, so every label in a batch is -1" in line for line in caplog.messages] == [True] * none
