"""The command line: help, exit statuses, one line for every expected error, nothing heavy imported for nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from iofast import __version__
from iofast.cli import main
from iofast.commands import COMMANDS
from iofast.commands.text import count, duration, size


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of two pictures."""
    for label, name in enumerate(("cat", "[red]dog")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (40, 30), (label * 90, number * 90, 0)).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


def run(*arguments: object) -> int:
    """The exit status of a command line, as the shell would see it."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as ended:  # argparse's way
        return int(ended.code or 0)


def loaded_by(*arguments: str) -> set[str]:
    """The modules that `iofast ARGUMENTS` has imported when it ends."""
    program = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        f"from iofast.cli import main\nmain({list(arguments)})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return set(json.loads(ended.stderr.splitlines()[-1]))


class TestHelp:
    def test_top(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--help") == 0
        text = capsys.readouterr().out
        assert "examples:" in text
        assert all(f"    {command} " in text for command in COMMANDS)
        assert all(len(line) <= 100 for line in text.splitlines())

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_examples(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(command, "--help") == 0
        text = capsys.readouterr().out
        assert f"  iofast {command} " in text.partition("examples:")[2]
        assert {"--json", "--quiet", "--debug"} <= set(text.split())

    def test_no_command_is_wrong_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run() == 2
        assert "usage: iofast" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("word", "words"),
        [("pakc", "did you mean pack?"), ("inof", "did you mean info?"), ("xyzzy", "the commands are pack")],
    )
    def test_unknown_command(self, word: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(word, "a", "b") == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1

    def test_wrong_usage_is_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("pack", "only-a-source") == 2
        assert capsys.readouterr().err.count("\n") == 1

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--version") == 0
        assert capsys.readouterr().out == f"iofast {__version__}\n"

    @pytest.mark.parametrize("arguments", [("--help",), ("pack", "--help"), ("--version",), ("pakc",)])
    def test_help_imports_nothing_heavy(self, arguments: tuple[str, ...]) -> None:
        heavy = {"torch", "numpy", "PIL", "lmdb", "tqdm", "rich", "psutil", "iofast.kernel", "importlib.metadata"}
        assert not heavy & loaded_by(*arguments)

    def test_packing_imports_no_torch(self, images: Path, tmp_path: Path) -> None:
        loaded = loaded_by("pack", str(images), str(tmp_path / "out.lmdb"), "--quiet")
        assert "iofast.packing.run" in loaded
        assert not {"torch", "rich", "tqdm", "pyarrow"} & loaded


class TestPack:
    def test_summary(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("pack", images, tmp_path / "out.lmdb", "--resize", 16) == 0
        text, error = capsys.readouterr()
        assert f"packed 4 images into {tmp_path / 'out.lmdb'}" in text
        assert "classes    2" in text
        assert "images/s" in text
        assert error == ""  # no bar where stderr is no terminal

    def test_json(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("pack", images, tmp_path / "out.lmdb", "--json") == 0
        assert json.loads(capsys.readouterr().out)["packed"] == 4

    def test_sidecars(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("pack", images, tmp_path / "out.tar", "--sidecars", "dali,wids") == 0
        assert {"out-000000.idx", "out.shardindex.json"} <= {path.name for path in tmp_path.iterdir()}
        assert run("pack", images, tmp_path / "out.lmdb", "--sidecars", "dali") == 2
        assert "sidecars are for tar and TFRecord shards" in capsys.readouterr().err
        assert not (tmp_path / "out.lmdb").exists()

    def test_quiet(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("pack", images, tmp_path / "out.lmdb", "--quiet") == 0
        assert capsys.readouterr() == ("", "")

    def test_some_failed(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (images / "cat" / "x.png").write_bytes(b"x")
        assert run("pack", images, tmp_path / "out.lmdb", "--max-errors", "1") == 3
        text = capsys.readouterr().out
        assert f"1 image, listed in {tmp_path / 'out.lmdb.errors.jsonl'}" in text

    def test_too_many_failed(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (images / "cat" / "x.png").write_bytes(b"x")
        assert run("pack", images, tmp_path / "out.lmdb", "--max-errors", 0) == 1
        assert_one_line(capsys, "1 of 5 images failed: expected at most 0", "out.lmdb.errors.jsonl", "--max-errors")
        assert not (tmp_path / "out.lmdb").exists()

    def test_dry_run(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("pack", images, tmp_path / "out.lmdb", "--dry-run", "--resize", 16) == 0
        text = capsys.readouterr().out
        assert "nothing was written" in text
        assert "enough" in text
        assert os.listdir(tmp_path) == ["images"]

    @pytest.mark.parametrize("make", ["missing", "empty", "no images", "a file"])
    def test_no_source(self, make: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source = tmp_path / "source"
        if make == "a file":
            source.write_bytes(b"")
        elif make != "missing":
            source.mkdir()
        if make == "no images":
            (source / "notes.txt").write_text("no image")
        assert run("pack", source, tmp_path / "out.lmdb", "--resize", 256) == 1
        assert_one_line(capsys, str(source))
        assert set(os.listdir(tmp_path)) <= {"source"}

    def test_existing_target(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "out.lmdb").write_bytes(b"precious")
        assert run("pack", images, tmp_path / "out.lmdb") == 1
        assert_one_line(capsys, "exists", "--overwrite")
        assert (tmp_path / "out.lmdb").read_bytes() == b"precious"
        assert run("pack", images, tmp_path / "out.lmdb", "--overwrite", "--quiet") == 0

    def test_target_without_a_folder(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("pack", images, tmp_path / "nowhere" / "deeper" / "out.lmdb") == 1
        assert_one_line(capsys, "nowhere")

    def test_target_that_is_a_folder(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "out.lmdb").mkdir()
        assert run("pack", images, tmp_path / "out.lmdb") == 1
        assert_one_line(capsys, "folder")

    @pytest.mark.parametrize(
        "options",
        [
            ("--mode", "upside-down"),
            ("--filter", "gauss"),
            ("--workers", "0"),
            ("--max-errors", "x"),
            ("--quality", "0"),
        ],
    )
    def test_wrong_options(
        self, options: tuple[str, str], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("pack", images, tmp_path / "out.lmdb", "--resize", 256, *options) == 2
        assert_one_line(capsys, options[0])
        assert os.listdir(tmp_path) == ["images"]

    def test_every_option_reaches_the_packer(self, images: Path, tmp_path: Path) -> None:
        options = "--resize 20 --mode long --only-shrink --filter box --quality 70 --format webp --reducing-gap 3"
        more = "--shuffle 5 --class-order natural --max-pixels 5000 --workers 1 --max-errors 2% --quiet"
        assert run("pack", images, tmp_path / "out.lmdb", *options.split(), *more.split()) == 0
        from iofast.containers.lmdb import LmdbReader

        with LmdbReader(tmp_path / "out.lmdb") as reader:
            recipe = reader.manifest.recipe
            assert (reader.manifest.seed, reader.manifest.class_order) == (5, "natural")
        shaped = {"size": 20, "mode": "long", "only_shrink": True, "filter": "box", "quality": 70, "format": "webp"}
        assert {**shaped, "reducing_gap": 3.0, "max_pixels": 5000}.items() <= recipe.items()

    def test_warnings_are_lines_on_stderr(
        self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Image.new("RGB", (4, 4)).save(images / "loose.png")
        assert run("pack", images, tmp_path / "out.lmdb", "--json") == 0
        text, error = capsys.readouterr()
        assert json.loads(text)["packed"] == 4
        assert error.startswith("iofast pack: warning: ")

    @pytest.mark.parametrize("how", ["option", "environment"])
    def test_debug_shows_the_traceback(
        self, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arguments = ["pack", str(tmp_path / "missing"), str(tmp_path / "out.lmdb")]
        if how == "option":
            arguments.append("--debug")
        else:
            monkeypatch.setenv("IOFAST_DEBUG", "1")
        assert run(*arguments) == 1
        assert "Traceback" in capsys.readouterr().err

    def test_ctrl_c(self, tmp_path: Path) -> None:
        """As a terminal does it: SIGINT to the whole group, workers and all."""
        rng = np.random.default_rng(0)
        (tmp_path / "images").mkdir()
        for number in range(300):
            pixels = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((640, 480)).save(tmp_path / "images" / f"{number}.jpg")
        target = tmp_path / "out.lmdb"
        command = [sys.executable, "-m", "iofast", "pack", str(tmp_path / "images"), str(target)]
        command += ["--resize", "256", "--workers", "2"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        deadline = time.monotonic() + 30
        partial = tmp_path / "out.lmdb.partial"
        while not any(path.stat().st_size for path in partial.glob("journal-*")) and time.monotonic() < deadline:
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=30)
        assert process.returncode == 130
        assert error.count("\n") == 1
        assert error.startswith("iofast pack: interrupted; the same command goes on from there; delete ")
        assert partial.is_dir()
        assert not target.exists()
        assert subprocess.run([*command, "--quiet"], timeout=60, check=False).returncode == 0
        assert sorted(os.listdir(tmp_path)) == ["images", "out.lmdb"]


class TestInfo:
    @pytest.fixture
    def packed(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
        assert run("pack", images, tmp_path / "out.lmdb", "--resize", 16, "--quiet") == 0
        return tmp_path / "out.lmdb"

    def test_text(self, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("info", packed) == 0
        text = capsys.readouterr().out
        assert "[red]dog" in text
        assert "quality=90" in text
        assert "height       16 to 16 pixels, median 16" in text

    def test_json(self, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("info", packed, "--json") == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["classes"] == {"[red]dog": 2, "cat": 2}
        assert facts["splits"] == {"all": 4}
        assert facts["count"] == 4
        assert facts["container"] == "lmdb"
        assert facts["bytes"] == packed.stat().st_size
        assert facts["images"]["width"] == {"min": 21, "median": 21, "max": 21}
        assert facts["fields"] == ["cls", "jpg", "json"]

    def test_plain_folder(self, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("info", images, "--json") == 0
        facts = json.loads(capsys.readouterr().out)
        size = sum(path.stat().st_size for path in images.rglob("*.png"))
        assert (facts["count"], facts["container"], facts["bytes"]) == (4, "folder", size)
        assert facts["classes"] == {"[red]dog": 2, "cat": 2}

    def test_what_is_not_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("info", tmp_path / "nothing.lmdb") == 1
        assert_one_line(capsys, "nothing.lmdb")
        (tmp_path / "text.lmdb").write_text("hello")
        assert run("info", tmp_path / "text.lmdb", "--quiet") == 1
        assert_one_line(capsys, "text.lmdb")

    def test_a_closed_pipe_is_no_traceback(self, packed: Path) -> None:
        command = f"{sys.executable} -m iofast info {packed} | true; exit ${{PIPESTATUS[0]}}"
        ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert ended.stderr == ""


def assert_one_line(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """Nothing on stdout, one line on stderr that has these words and begins like an error of iofast."""
    text, error = capsys.readouterr()
    assert text == ""
    assert error.startswith("iofast ")
    assert ": error: " in error
    assert error.count("\n") == 1
    assert all(word in error for word in words), error


def test_numbers_as_people_read_them() -> None:
    assert [size(n) for n in (0, 999, 1000, 14_233_000, 999_500_000)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "14.2 MB",
        "1.00 GB",
    ]
    assert [duration(s) for s in (0.414, 12.34, 200, 7500)] == ["0.41 s", "12.3 s", "3 min 20 s", "2 h 05 min"]
    assert [count(n, "image") for n in (1, 1200)] == ["1 image", "1,200 images"]
