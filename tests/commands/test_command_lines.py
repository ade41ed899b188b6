"""Wrong command lines: options without effect, mistyped ones, empty paths; messages name options as typed."""

import argparse
from pathlib import Path

import pytest
from command_line import CommandLine
from PIL import Image

from iofast import open_reader, pack
from iofast.commands import COMMANDS
from iofast.commands.shared import Parser
from iofast.errors import SourceError


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (20, 10)).save(tmp_path / "images" / "a.jpg")
    return tmp_path / "images"


WITHOUT_EFFECT = [  # command line, words of the message
    ("pack {} y.lmdb --shard-size 1GB", "--shard-size 1GB has no effect: expected a target of shards, found y.lmdb"),
    ("pack {} y.lmdb --shard-records 5", "--shard-records 5 has no effect: expected a target of shards, found y.lmdb"),
    ("pack {} y.lmdb --label-base 1", "--label-base 1 has no effect: expected a target of TFRecords, found y.lmdb"),
    ("view {} s.png --indices 0-2 --count 3", "--count has no effect: expected none beside --indices"),
    ("view {} s.png --boxes none --box-format xywh", "--box-format xywh has no effect: expected --boxes"),
    ("view {} s.png --transform train --mask seg.png", "expected none beside --transform"),
    ("cat {} 0 --field jpg --json", "--json has no effect: expected none beside --field"),
]


@pytest.mark.parametrize(("line", "words"), WITHOUT_EFFECT)
def test_an_option_without_effect(
    images: Path, tmp_path: Path, iofast: CommandLine, monkeypatch: pytest.MonkeyPatch, line: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    iofast(*line.format(images).split()).fails(2, words)
    assert not [*tmp_path.glob("y.*"), *tmp_path.glob("s.png")]


class TestSuggestions:
    @pytest.mark.parametrize(
        ("words", "hint"),
        [
            ("pack a b.lmdb --resise 256", "iofast pack: error: unknown option --resise: did you mean --resize?"),
            ("pack --resise=256", "did you mean --resize?"),
            ("pack a b.lmdb --nonsense", "unknown option --nonsense (see iofast pack --help)"),
            ("monitor --onse", "iofast monitor: error: unknown option --onse: did you mean --once?"),
            ("--verison", "iofast: error: unknown option --verison: did you mean --version?"),
            ("info a b", "iofast info: error: unrecognized arguments: b (see iofast info --help)"),
            ("pakc a b", "did you mean pack?"),
            ("verify a --workers 0", "--workers must be 1 or more, found 0"),
            ("xyzzy a b", "the commands are run, pack"),
            ("pack only-a-source", "required: DST"),
            ("pack a b.lmdb -x", "iofast pack: error: unrecognized arguments: -x (see iofast pack --help)"),
        ],
    )
    def test_options(self, iofast: CommandLine, words: str, hint: str) -> None:
        iofast(*words.split()).fails(2, hint)

    def test_options_of_a_started_program_are_not_checked(self) -> None:
        parser = Parser(prog="x")
        parser.add_argument("--pid", type=int)
        parser.add_argument("program", nargs=argparse.REMAINDER)
        parser.check_options(["--pid", "3", "python", "--lr", "1"])
        with pytest.raises(SystemExit):
            parser.check_options(["--pid", "3", "--lr"])

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("out", "out.lmdb"),
            ("out.LMDB", "out.lmdb"),
            ("out.tfrecrods", "out.tfrecords"),
            ("set.star", None),
        ],
    )
    def test_targets(self, images: Path, tmp_path: Path, iofast: CommandLine, name: str, meant: str | None) -> None:
        result = iofast("pack", images, tmp_path / name)
        result.fails(2, "expected .lmdb, .tar, .tfrecord, .tfrecords, or a / at the end for a folder of files, found ")
        assert ("did you mean" in result.err) == (meant is not None)
        assert meant is None or f"did you mean {tmp_path / meant}?" in result.err

    @pytest.mark.parametrize("command", [each for each in COMMANDS if each not in ("monitor", "doctor", "cache")])
    def test_empty_paths(self, command: str, iofast: CommandLine) -> None:
        """An unset `$DATA` is never the current folder."""
        more = {"pack": ["x.lmdb"], "cat": ["0"], "view": ["x.png"], "convert": ["x.lmdb"]}
        iofast(command, "", *more.get(command, [])).fails(2, "is empty: expected a path, found ''")

    def test_an_empty_path_in_python(self) -> None:
        with pytest.raises(SourceError, match=r"is empty: expected a .*, found ''"):
            open_reader("")


def test_the_first_screen_of_packs_help_has_the_options_that_people_use(
    iofast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    screen = iofast("pack", "--help").out.splitlines()[:24]
    assert max(map(len, screen)) <= 80
    options = " ".join(line.split()[0] for line in screen if line.startswith("  --"))
    assert options == "--resize --mode --format --quality --fields --shuffle --split --workers --overwrite --dry-run"


class TestWords:
    """Messages name options as they are typed."""

    @pytest.mark.parametrize(
        ("message", "typed"),
        [
            ("max_errors must be 1", "--max-errors must be 1"),
            ("with max_errors=3, and", "with --max-errors 3, and"),
            ("give overwrite=True", "give --overwrite"),
            ("format must be one of", "--format must be one of"),
            ("found no format", "found no format"),
            ("found label=3", "found --class 3"),
            ("/data/max_errors/x and 'max_errors' and max_errors.txt", None),
            ("as in image=photo,label=class", None),
            ("other_option=3", None),
        ],
    )
    def test_typed(self, message: str, typed: str | None) -> None:
        parser = Parser(prog="x")
        for option in ("--max-errors", "--overwrite", "--format", "--split"):
            parser.add_argument(option)
        parser.add_argument("--class", dest="label")
        assert parser.typed(message, leading=True) == (message if typed is None else typed)
        assert not parser.typed("format of the file is unknown").startswith("--")

    def test_in_errors_of_the_target(self, images: Path, tmp_path: Path, iofast: CommandLine) -> None:
        pack(images, tmp_path / "out.tar", workers=1)
        iofast("pack", images, tmp_path / "out.tar", "--workers", 1).fails(1, "give --overwrite")
