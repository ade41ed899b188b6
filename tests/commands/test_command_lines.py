"""Command lines that are wrong: options without effect, mistyped ones, empty paths; messages in the user's words."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from iofast import open_reader, open_writer, pack
from iofast.cli import main
from iofast.commands import COMMANDS
from iofast.commands.parser import Parser
from iofast.copying import CopyOptions, Division, convert, split
from iofast.errors import ErrorBudgetError, OptionError, SourceError
from iofast.packing import PackOptions
from iofast.sheet import SheetOptions


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make(tmp_path / "images", 3)


def make(folder: Path, good: int, bad: int = 0) -> Path:
    folder.mkdir()
    for number in range(good):
        Image.new("RGB", (20, 10 + number)).save(folder / f"{number}.jpg")
    for number in range(bad):
        (folder / f"bad{number}.jpg").write_bytes(b"\xff\xd8\xff nothing")
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit status and the line on standard error of a command line."""
    try:
        status = main(list(map(str, arguments)))
    except SystemExit as ended:  # argparse's way
        status = int(ended.code or 0)
    text, error = capsys.readouterr()
    assert not status or (text, error.count("\n")) == ("", 1)
    return status, error


WITHOUT_EFFECT: list[tuple[str, str]] = [  # options, and what the message says is missing
    ("--quality 80 --format png --resize 16", "--quality 80 has no effect: expected --format jpeg or webp"),
    ("--quality 90 --format rgb", "found --format rgb"),
    ("--quality 80", "found --format keep, which changes no pixel here"),
    ("--subsampling 444 --format webp", "--subsampling 444 has no effect: expected --format jpeg beside it"),
    ("--subsampling 420", "--subsampling 420 has no effect"),
    ("--restart 4 --format png", "--restart 4 has no effect: expected --format jpeg or keep"),
    ("--restart none --format yuv420", "--restart none has no effect"),
    ("--filter box", "--filter box has no effect: expected --resize beside it, found none; leave it out"),
    ("--only-shrink", "--only-shrink has no effect: expected --resize beside it"),
    ("--reducing-gap 3 --format jpeg", "--reducing-gap 3.0 has no effect: expected --resize"),
    ("--pad-color white --resize 16", "has no effect: expected --mode pad beside it, found --mode short"),
    ("--mask-fill 255 --resize 16", "--mask-fill 255 has no effect: expected --mode pad"),
    ("--check end --format jpeg", "--check end has no effect: expected --format keep"),
    ("--box-format xywh", "--box-format xywh has no effect: expected --boxes beside it"),
    ("--split-seed 0", "--split-seed 0 has no effect: expected --split beside it"),
    ("--shard-size 1GB", "--shard-size 1GB has no effect: expected a target of shards, found out.lmdb"),
    ("--label-base 1", "--label-base 1 has no effect: expected a target of TFRecords, found out.lmdb"),
    ("--sidecars dali", "sidecars are for tar and TFRecord shards"),
]
WITH_EFFECT = [
    "--quality 80 --format webp --filter box --only-shrink --reducing-gap 3 --resize 16",
    "--quality 80 --subsampling 444 --format keep --resize 16",
    "--quality 80 --subsampling 444 --icc srgb",
    "--quality 80 --subsampling 422 --background black",
    "--restart none",
    "--format jpeg --restart 2",
    "--resize 16 --mode pad --pad-color white",
    "--split val=0.5 --split-seed 0",
]


class TestWithoutEffect:
    @pytest.mark.parametrize(("options", "words"), WITHOUT_EFFECT)
    def test_is_refused(
        self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, words: str
    ) -> None:
        status, error = said(capsys, "pack", images, tmp_path / "out.lmdb", *options.split())
        assert status == 2
        assert words in error
        assert not list(tmp_path.glob("out.lmdb*"))

    @pytest.mark.parametrize("options", WITH_EFFECT)
    def test_is_not_what_has_one(
        self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str
    ) -> None:
        assert said(capsys, "pack", images, tmp_path / "out.lmdb", *options.split(), "--dry-run", "--quiet")[0] == 0

    def test_in_python(self) -> None:
        with pytest.raises(OptionError, match=r"^quality=80 has no effect: expected format=jpeg or webp beside it"):
            PackOptions(quality=80, format="png")
        assert PackOptions(format="webp").recipe().quality == 90
        with pytest.raises(OptionError, match=r"^box_format=xywh has no effect: expected boxes="):
            SheetOptions(boxes="", box_format="xywh")

    @pytest.mark.parametrize("target", ["out.lmdb", "out"])
    def test_sizes_of_shards(self, images: Path, tmp_path: Path, target: str) -> None:
        with pytest.raises(OptionError, match="shard_size=5000 has no effect: expected a target of shards"):
            convert(images, tmp_path / target, CopyOptions(shard_size=5000))
        if target == "out.lmdb":
            with pytest.raises(OptionError, match="shard_size=5000 has no effect"):
                open_writer(tmp_path / target, shard_size=5000)
        assert not (tmp_path / target).exists()

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ("view {} s.png --indices 0-2 --count 3", "--count has no effect: expected none beside --indices"),
            ("view {} s.png --indices 0-2 --class x", "--class has no effect"),
            ("view {} s.png --indices 0-2 --seed 0", "--seed has no effect"),
            ("view {} s.png --boxes none --box-format xywh", "--box-format xywh has no effect: expected --boxes"),
            ("cat {} 0 --field jpg --json", "--json has no effect: expected none beside --field"),
            ("split {} y.tar --split val=0-1 --seed 3", "--seed 3 has no effect: expected a share"),
            ("split {} y.tar --split val=0-1 --stratify", "--stratify has no effect: expected a share"),
            ("convert {} y.lmdb --shard-size 1MB", "--shard-size 1MB has no effect"),
        ],
    )
    def test_other_commands(
        self,
        images: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        command: str,
        words: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        status, error = said(capsys, *command.format(images).split())
        assert status == 2
        assert words in error

    def test_a_division_by_numbers_alone(self, images: Path, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match="stratify=True has no effect"):
            split(images, tmp_path / "x.tar", Division({"val": [0]}, stratify=True))
        assert split(images, tmp_path / "x.tar", Division({"val": [0]})).records == 3


class TestSuggestions:
    @pytest.mark.parametrize(
        ("words", "hint"),
        [
            ("pack a b.lmdb --resise 256", "iofast pack: error: unknown option --resise: did you mean --resize?"),
            ("pack --resise 256 a b.lmdb", "did you mean --resize? (see iofast pack --help)"),
            ("pack --resise=256", "did you mean --resize?"),
            ("pack a b.lmdb --nonsense", "unknown option --nonsense (see iofast pack --help)"),
            ("info a --jsn", "iofast info: error: unknown option --jsn: did you mean --json?"),
            ("monitor --onse", "iofast monitor: error: unknown option --onse: did you mean --once?"),
            ("--verison", "iofast: error: unknown option --verison: did you mean --version?"),
            ("info a b", "iofast info: error: unrecognized arguments: b (see iofast info --help)"),
            ("pack a b.lmdb -x", "iofast pack: error: unrecognized arguments: -x (see iofast pack --help)"),
        ],
    )
    def test_options(self, capsys: pytest.CaptureFixture[str], words: str, hint: str) -> None:
        status, error = said(capsys, *words.split())
        assert status == 2
        assert hint in error

    def test_options_of_a_program_that_is_started_are_its_own(self) -> None:
        parser = Parser(prog="x")
        parser.add_argument("--pid", type=int)
        parser.add_argument("program", nargs=argparse.REMAINDER)
        parser.check_options(["--pid", "3", "--", "python", "--lr", "1"])
        parser.check_options(["--pid", "3", "python", "--lr", "1"])
        with pytest.raises(SystemExit):
            parser.check_options(["--pid", "3", "--lr"])

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("out", "out.lmdb"),
            ("out.LMDB", "out.lmdb"),
            ("out.lmbd", "out.lmdb"),
            ("o.Tar", "o.tar"),
            ("out.zip", None),
        ],
    )
    def test_targets(
        self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, meant: str | None
    ) -> None:
        status, error = said(capsys, "pack", images, tmp_path / name)
        assert status == 2
        assert "expected .lmdb, .tar, .tfrecord, .tfrecords, found " in error
        assert ("did you mean" in error) == (meant is not None)
        assert meant is None or f"did you mean {tmp_path / meant}?" in error

    @pytest.mark.parametrize("command", [each for each in COMMANDS if each not in ("monitor", "doctor")])
    def test_empty_paths(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        """`$DATA` that is not set: never the current folder."""
        more = {"pack": ["x.lmdb"], "cat": ["0"], "view": ["x.png"], "convert": ["x.lmdb"], "merge": ["a", "b.lmdb"]}
        more |= {"split": ["x.lmdb", "--split", "val=0.1"], "sidecars": ["--for", "dali"]}
        status, error = said(capsys, command, "", *more.get(command, []))
        assert status == 2
        assert "is empty: expected a path, found ''" in error

    def test_empty_paths_in_python(self, tmp_path: Path) -> None:
        calls: list[Any] = [lambda: open_reader(""), lambda: pack("", tmp_path / "x.lmdb", workers=1)]
        for call in calls:
            with pytest.raises(SourceError, match=r"is empty: expected a .*, found ''"):
                call()


class TestWords:
    """Messages name options as they are typed."""

    @pytest.fixture
    def parser(self) -> Parser:
        parser = Parser(prog="x")
        for option in ("--max-errors", "--overwrite", "--format", "--split"):
            parser.add_argument(option)
        parser.add_argument("--class", dest="label")
        return parser

    @pytest.mark.parametrize(
        ("message", "typed"),
        [
            ("max_errors must be 1", "--max-errors must be 1"),
            ("with max_errors=3, and", "with --max-errors 3, and"),
            ("a larger max_errors=, and", "a larger --max-errors, and"),
            ("give overwrite=True", "give --overwrite"),
            ("format must be one of", "--format must be one of"),
            ("found no format", "found no format"),
            ("found label=3", "found --class 3"),
            ("/data/max_errors/x and 'max_errors' and max_errors.txt", None),
            ("as in image=photo,label=class", None),
            ("other_option=3", None),
        ],
    )
    def test_typed(self, parser: Parser, message: str, typed: str | None) -> None:
        assert parser.typed(message, leading=True) == (message if typed is None else typed)
        assert not parser.typed("format of the file is unknown").startswith("--")

    def test_in_errors_of_the_target(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("out.lmdb", "out.tar"):
            pack(images, tmp_path / name, workers=1)
            status, error = said(capsys, "pack", images, tmp_path / name)
            assert status == 1
            assert "give --overwrite" in error
            with pytest.raises(OSError, match="give overwrite=True"):
                pack(images, tmp_path / name, workers=1)

    def test_of_a_run_with_other_options(
        self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("iofast.packing.build.Builder.finish", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            pack(images, tmp_path / "out.lmdb", workers=1, resize=16)
        _, error = said(capsys, "pack", images, tmp_path / "out.lmdb", "--resize", 8)
        assert "holds the work of a run with --resize 16, not 8" in error


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


class TestErrorBudget:
    @pytest.mark.parametrize(
        ("images", "allowed"),
        [(1, 0), (2, 1), (5, 2), (19, 9), (20, 10), (99, 10), (1000, 10), (1100, 11), (1_000_000, 10_000)],
    )
    def test_a_few_are_allowed_but_never_most(self, images: int, allowed: int) -> None:
        assert PackOptions().allowed_errors(images) == allowed

    def test_one_bad_file_among_a_few(self, tmp_path: Path) -> None:
        report = pack(make(tmp_path / "images", 5, bad=1), tmp_path / "out.lmdb", workers=1)
        assert (report.packed, report.failed, report.status) == (5, 1, 3)

    @pytest.mark.parametrize(("good", "bad"), [(0, 1), (0, 3), (1, 2), (2, 4)])
    def test_a_set_that_is_mostly_bad_is_an_error(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], good: int, bad: int
    ) -> None:
        source = make(tmp_path / "images", good, bad)
        with pytest.raises(ErrorBudgetError):
            pack(source, tmp_path / "out.lmdb", workers=1)
        assert not (tmp_path / "out.lmdb").exists()
        status, error = said(capsys, "pack", source, tmp_path / "out.lmdb", "--workers", 1)
        assert status == 1
        assert f" of {good + bad} images failed: expected at most {(good + bad) // 2}, found " in error
        assert "mend or delete them, or give a larger --max-errors, and the same command goes on from there" in error

    def test_all_bad_is_an_error_whatever_is_allowed(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="no image of 3"):
            pack(make(tmp_path / "images", 0, bad=3), tmp_path / "out.lmdb", workers=1, max_errors="100%")
