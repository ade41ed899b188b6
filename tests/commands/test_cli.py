"""The command line: help, exit statuses, one line for every expected error; `pack` and `info`."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import CommandLine
from container_sets import COUNT
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import jpeg, photo
from PIL import Image
from rich.console import Console

from iofast import __version__, open_reader, open_writer
from iofast.commands import COMMANDS
from iofast.commands.info import bars, histogram
from iofast.commands.shared import count, duration, size
from iofast.option import QUALITY


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of two pictures."""
    for label, name in enumerate(("cat", "[red]dog")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (40, 30), (label * 90, number * 90, 0)).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


class TestHelp:
    def test_top(self, iofast: CommandLine) -> None:
        status, text, _ = iofast("--help")
        assert status == 0
        assert "examples:" in text
        assert all(f"    {command} " in text for command in COMMANDS)
        assert all(len(line) <= 100 for line in text.splitlines())
        assert iofast()[:2] == (2, text)
        assert iofast("--version") == (0, f"iofast {__version__}\n", "")

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_examples(self, command: str, iofast: CommandLine) -> None:
        status, text, _ = iofast(command, "--help")
        assert status == 0
        assert f"  iofast {command} " in text.partition("examples:")[2]
        data = "--report" if command == "run" else "--json"  # its output is the script's
        assert {data, "--quiet", "--debug"} <= set(text.split())


class TestPack:
    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        return tmp_path / "out.lmdb"

    def test_summary(self, images: Path, target: Path, iofast: CommandLine) -> None:
        status, text, error = iofast("pack", images, target, "--resize", 16)
        assert (status, error) == (0, "")  # no bar, because stderr is not a terminal
        assert f"packed 4 images into {target}" in text
        assert "classes    2" in text
        assert "images/s" in text
        assert f"next       FastDataset('{target}') in Python; iofast bench {target}\n" in text

    def test_dry_run(self, images: Path, target: Path, iofast: CommandLine) -> None:
        status, text, _ = iofast("pack", images, target, "--dry-run", "--resize", 16)
        assert status == 0
        assert "nothing was written" in text
        assert "enough" in text
        assert set(os.listdir(target.parent)) <= {"images", "cache"}

    def test_json_and_warnings(self, images: Path, target: Path, iofast: CommandLine) -> None:
        Image.new("RGB", (4, 4)).save(images / "loose.png")
        result = iofast("pack", images, target, "--json")
        assert result.facts["packed"] == 4
        assert result.err.startswith("iofast pack: warning: ")

    def test_failed_images(self, images: Path, target: Path, iofast: CommandLine) -> None:
        (images / "cat" / "x.png").write_bytes(b"x")
        words = "1 of 5 images failed: expected at most 0", "out.lmdb.errors.jsonl", "--max-errors"
        iofast("pack", images, target, "--max-errors", 0).fails(1, *words)
        assert not target.exists()
        status, text, _ = iofast("pack", images, target, "--max-errors", "1")
        assert status == 3
        assert f"1 image, listed in {target}.errors.jsonl" in text

    def test_every_option_reaches_the_packer(self, images: Path, target: Path, iofast: CommandLine) -> None:
        options = "--resize 20 --mode long --only-shrink --filter box --quality 70 --format webp --reducing-gap 3"
        more = "--shuffle 5 --class-order natural --max-pixels 5000 --workers 1 --max-errors 2% --quiet"
        assert iofast("pack", images, target, *options.split(), *more.split()).status == 0
        with open_reader(target) as reader:
            recipe = reader.manifest.recipe
            assert (reader.manifest.seed, reader.manifest.class_order) == (5, "natural")
        shaped = {"size": 20, "mode": "long", "only_shrink": True, "filter": "box", "quality": 70, "format": "webp"}
        assert {**shaped, "reducing_gap": 3.0, "max_pixels": 5000}.items() <= recipe.items()

    @pytest.mark.parametrize("how", ["option", "environment"])
    def test_debug_shows_the_traceback(
        self, how: str, target: Path, iofast: CommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("IOFAST_DEBUG", "1" if how == "environment" else "0")
        result = iofast("pack", target.parent / "missing", target, *(["--debug"] if how == "option" else []))
        assert result.status == 1
        assert "Traceback" in result.err

    def test_ctrl_c(self, tmp_path: Path, target: Path, iofast: CommandLine) -> None:
        """A terminal sends SIGINT to the whole group, workers included."""
        (tmp_path / "images").mkdir()
        image = jpeg(photo(640, 480))
        for number in range(300):
            (tmp_path / "images" / f"{number}.jpg").write_bytes(image)
        line = ["pack", str(tmp_path / "images"), str(target), "--resize", "256", "--workers", "2"]
        command = [sys.executable, "-m", "iofast", *line]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        deadline = time.monotonic() + 30
        partial = tmp_path / "out.lmdb.partial"
        while not (partial / "plan.json").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=30)
        assert (process.returncode, error.count("\n")) == (130, 1)
        assert error.startswith("iofast pack: interrupted; the same command goes on from there; delete ")
        assert partial.is_dir()
        assert not target.exists()
        assert iofast(*line, "--quiet").status == 0
        assert {"images", "out.lmdb"} == set(os.listdir(tmp_path)) - {"cache"}


def test_ctrl_c_while_libraries_are_imported(iofast: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("iofast.cli.import_module", interrupted)
    assert iofast("info", "out.lmdb") == (130, "", "iofast: interrupted\n")


class TestInfo:
    def test_of_a_container(self, images: Path, tmp_path: Path, iofast: CommandLine) -> None:
        packed = tmp_path / "out.lmdb"
        assert iofast("pack", images, packed, "--resize", 16, "--quiet") == (0, "", "")
        text = iofast("info", packed).out
        for words in ("[red]dog", f"quality={QUALITY}", "height       16 to 16 pixels, median 16"):
            assert words in text
        facts = iofast("info", packed, "--json").facts
        assert (facts["splits"], facts["count"], facts["container"]) == ({"all": 4}, 4, "lmdb")
        assert facts["images"]["width"] == {"min": 21, "median": 21, "max": 21}

    def test_of_a_folder(self, images: Path, iofast: CommandLine) -> None:
        facts = iofast("info", images, "--json").facts
        size = sum(path.stat().st_size for path in images.rglob("*.png"))
        assert (facts["count"], facts["container"], facts["bytes"]) == (4, "folder", size)
        assert facts["classes"] == {"[red]dog": 2, "cat": 2}

    def test_what_is_not_there(self, tmp_path: Path, iofast: CommandLine) -> None:
        iofast("info", tmp_path / "nothing.lmdb").fails(1, "nothing.lmdb")
        (tmp_path / "text.lmdb").write_text("hello")
        iofast("info", tmp_path / "text.lmdb", "--quiet").fails(1, "text.lmdb")

    def test_a_closed_pipe_is_no_traceback(self, images: Path) -> None:
        command = f"{sys.executable} -m iofast info {images} | true; exit ${{PIPESTATUS[0]}}"
        ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert ended.stderr == ""


def test_readable_numbers() -> None:
    sizes = ["0 B", "999 B", "1.00 kB", "14.2 MB", "1.00 GB"]
    assert [size(n) for n in (0, 999, 1000, 14_233_000, 999_500_000)] == sizes
    assert [duration(s) for s in (0.414, 12.34, 200, 7500)] == ["0.414 s", "12.3 s", "03:20", "2:05:00"]
    assert [count(n, "image") for n in (1, 1200)] == ["1 image", "1,200 images"]


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=200))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    bins = histogram(np.array(values))
    assert sum(count for *_, count in bins) == len(values)
    assert (bins[0][0], bins[-1][1]) == (min(values), max(values))
    assert all(one[1] == other[0] for one, other in pairwise(bins))
    for low, high, found in bins[:-1]:
        assert found == sum(low <= value < high for value in values)


def test_bars_fit_a_terminal() -> None:
    bins = [[1.0, 9_999_999.0, 9_999_999_999.0], [1e6, 1e7, 0], [1e7, 1e8, 1]]
    console = Console(width=80)
    with console.capture() as shown:
        console.print(bars(bins, lambda edge: f"{edge:,.0f}"))
    lines = shown.get().splitlines()
    assert [line.count("█") for line in lines] == [32, 0, 0]
    assert "▏" in lines[2]  # a count of 1 is visible
    assert histogram(np.zeros(0)) == []


def test_command(container: Path, iofast: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = iofast("info", container, "--json").facts
    assert sum(count for *_, count in facts["images"]["histograms"]["bytes"]) == COUNT
    assert (facts["images"]["field"], facts["images"]["fields"]) == ("jpg", ["jpg", "png"])
    assert facts["images"]["histograms"]["shorter_side"] == [[40.0, 40.0, COUNT]]
    files = [each for each in container.parent.iterdir() if each.suffix == container.suffix and each != container]
    assert {shard["name"] for shard in facts["shards"]} == {each.name for each in files}
    assert sum(shard["count"] for shard in facts["shards"]) == (COUNT if files else 0)
    assert facts["bytes"] == sum(each.stat().st_size for each in files or [container])
    monkeypatch.setenv("COLUMNS", "80")
    text = iofast("info", container).out
    for words in ("bytes of an image", "images       jpg png, ", *(each.name for each in files)):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    assert f"fingerprint  {facts['fingerprint']}" in iofast("info", container).out.splitlines()  # nothing wraps


@pytest.mark.parametrize(
    ("classes", "labels", "facts", "line"),
    [
        (["cat", "dog"], [1, 1, 0, None], {"images": None, "classes": {"cat": 1, "dog": 2}, "unlabelled": 1}, "cat 1"),
        (
            ["dog", "ant", "cat"],
            [2, 0, 0],
            {"classes": {"dog": 2, "ant": 0, "cat": 1}, "labels": {"0": 2, "2": 1}},
            "3, in lexicographic order, those added later last",
        ),
        (None, [7, 7, 3], {"classes": None, "labels": {"3": 1, "7": 2}}, "labels 2, without names"),
    ],
)
def test_classes(
    tmp_path: Path,
    iofast: CommandLine,
    classes: list[str] | None,
    labels: list[int | None],
    facts: dict[str, Any],
    line: str,
) -> None:
    with open_writer(tmp_path / "set.lmdb", classes=classes) as writer:
        for label in labels:
            writer.write({"txt": "a caption"} | ({} if label is None else {"cls": label}))
    found = iofast("info", tmp_path / "set.lmdb", "--json").facts
    assert {name: found[name] for name in facts} == facts
    if classes:
        assert list(found["classes"]) == classes  # in the order of their numbers
    assert line in " ".join(iofast("info", tmp_path / "set.lmdb").out.split())
