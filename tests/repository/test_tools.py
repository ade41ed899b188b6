"""The repository's own tools: sample photographs, the list of long runs, the text of a release, forked programs."""

from __future__ import annotations

import hashlib
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import forked
import numpy as np
import pytest
from PIL import Image
from places import ROOT

from benchmarks import measure
from tools import sample_photographs
from tools.release_notes import CHANGELOG, notes
from tools.sample_photographs import jpeg
from tools.scenes import SCENES, Camera, Surfaces, photograph
from tools.torture import NotTried
from tools.torture import __main__ as torture
from tools.torture.__main__ import PARTS, main


@pytest.mark.slow
def test_sample_photographs_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    def digests(folder: str, seed: int) -> list[str]:
        paths = sample_photographs.make(tmp_path / folder, per_class=2, val=1, seed=seed, quiet=True)
        assert len(paths) == len(set(paths)) == 3 * len(list((tmp_path / folder / "train").iterdir()))
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]

    first = digests("a", 0)
    assert digests("b", 0) == first
    assert set(digests("c", 1)).isdisjoint(first)


def test_scenes_have_the_spectrum_of_photographs() -> None:
    """Power falls with frequency as in photographs: amplitude about 1/f, so power at f and at 4 f differ 16-fold."""
    surfaces = Surfaces(0)
    ratios = []
    for number, name in enumerate(SCENES):
        gray = photograph(name, Camera(np.random.default_rng(number), surfaces, 256, 256)).mean(2)
        power = np.abs(np.fft.fft2(gray * np.outer(np.hanning(256), np.hanning(256)))) ** 2
        frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(256), np.fft.fftfreq(256))) * 256
        low, high = (power[(frequency > f * 0.8) & (frequency < f * 1.25)].mean() for f in (16, 64))
        ratios.append(low / high)
    assert 4 < np.exp(np.mean(np.log(ratios))) < 64


def test_rotated_samples_are_upright_after_their_exif(tmp_path: Path) -> None:
    pixels = np.zeros((30, 60, 3), np.uint8)
    pixels[:10] = 255  # a white sky
    sizes = set()
    for seed in range(200):
        path = tmp_path / "image.jpg"
        path.write_bytes(jpeg(np.random.default_rng(seed), pixels))
        with Image.open(path) as image:
            if image.getexif().get(0x0112):
                sizes.add(image.size)
                image = image.transpose(Image.Transpose.ROTATE_270)  # what 6 asks for: 90 degrees clockwise
                upright = np.asarray(image)
                assert upright.shape[:2] == (30, 60)
                assert upright[:8].mean() > 240
                assert upright[12:].mean() < 15
    assert sizes == {(30, 60)}


def test_each_long_run_states_what_must_hold() -> None:
    assert "kills" in PARTS
    assert not [name for name in PARTS if name.startswith("_")]
    table = (ROOT / "CONTRIBUTING.md").read_text()
    for name in PARTS:
        assert f"`{name}`" in table
        text = (ROOT / "tools" / "torture" / f"{name}.py").read_text()
        assert text.startswith('"""')
        assert "\ndef run() -> list[str]:" in text
    assert main(["nothing-of-this-name"]) == 2


def test_a_part_that_cannot_run_leaves_the_last_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> list[str]:
        raise NotTried("it needs a network")

    monkeypatch.setattr(torture, "RESULTS", tmp_path)
    monkeypatch.setattr(torture, "import_module", lambda _: SimpleNamespace(__doc__="A question.", run=missing))
    assert main(["stored_nodes"]) == 0
    assert "stored_nodes: NOT TRIED: it needs a network" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["load", "pack", "kernel", "stored"])
def test_parts_of_a_benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is on the command line, and its description names it."""
    seen: list[dict[str, object]] = []
    monkeypatch.setattr(measure, "run", lambda doc, parts: seen.append(parts))
    runpy.run_module(f"benchmarks.bench_{name}", run_name="__main__")
    (parts,) = seen
    assert parts
    text = (ROOT / "benchmarks" / f"bench_{name}.py").read_text().split('"""')[1]
    assert [part for part in parts if part not in text] == []


TEXT = "# Changelog\n\n## [Unreleased]\n\nnext\n\n## [1.2.0]\n\n### Added\n\n- one\n\n## [1.1.0]\n\n- old\n"


def test_the_part_of_a_version() -> None:
    assert notes(TEXT, "1.2.0") == "### Added\n\n- one\n"
    assert notes(TEXT, "1.1.0") == "- old\n"
    assert notes(CHANGELOG.read_text(), "Unreleased")


def test_no_such_version() -> None:
    with pytest.raises(ValueError, match=r"expected a heading `## \[2\]` in CHANGELOG.md, found none"):
        notes(TEXT, "2")


PROGRAMS = {
    "prints": ("print(input(), __name__, __import__('sys').argv)", 0),
    "exits": ("raise SystemExit(7)", 7),
    "says why": ("raise SystemExit('no')", 1),
    "fails": ("1 / 0", 1),
    "warns": ("import warnings; warnings.warn('once')", 1),
    "interrupted": ("raise KeyboardInterrupt", -signal.SIGINT),
    "killed": ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "late": ("import atexit; atexit.register(print, 'late')", 0),
    "threads": ("import threading; threading.Timer(0.1, print, ['waited for']).start()", 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_a_new_interpreter(name: str, tmp_path: Path) -> None:
    program, status = PROGRAMS[name]
    command = [sys.executable, "-W", "error", "-c", program, "word"]
    ours = forked.run(command, input="given\n", cwd=tmp_path)
    theirs = subprocess.run(command, input="given\n", cwd=tmp_path, capture_output=True, text=True)
    assert ours.returncode == theirs.returncode == status
    assert ours.stdout == theirs.stdout
    assert ours.stderr.splitlines()[-1:] == theirs.stderr.splitlines()[-1:] or name == "interrupted"


def test_surroundings(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "script.py").write_text(
        "import beside, os, sys\nprint(os.getcwd(), os.environ['A'], beside.NAME, sys.argv[1])\n"
    )
    ended = forked.run([sys.executable, tmp_path / "script.py", "x"], env={**os.environ, "A": "b"}, cwd="/", check=True)
    assert ended.stdout == "/ b beside x\n"


def test_a_program_without_end() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run([sys.executable, "-c", "while True: pass"], timeout=0.2)
    assert forked.run([sys.executable, "-m", "iofast", "--version"]).stdout
