"""The pages docs/coming-from/: what they print is run, with the package of the other program.

A section (`##`) of a page has commands (```bash) and one program (all its ```python blocks together). A program that
imports the other package is theirs, and runs in the environment of that package. Commands and the other programs are
ours. All run in one folder, which has photographs as a reader has them: `images/train/bear/bear_00.JPEG`, ….
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from tools.environments import ROOT, Missing
from tools.interop.environments import ENVIRONMENTS

DOCUMENTS = ROOT / "docs" / "coming-from"
CLASSES = ("bear", "cat", "cow", "dog", "fox", "goat", "hen", "horse", "pig", "sheep", "wolf")
SPLITS = {"train": 8, "val": 2}  # images of a class. To train from: one batch of 64, which the pages use, and a rest
TIMEOUT = 300  # seconds for one program: Numba and TensorFlow take half a minute

# After "Before": the loop had a batch. Processes that LitData starts import the program, and skip this.
_HAD_BATCHES = """
if __name__ == "__main__":
    assert len(images) == len(labels) > 0
"""
# Beside a build of torch for processors, the torchvision of the package index lacks its operators, and its import
# fails at their registrations. The pages need none of them.
_SITE = """import sys, types
sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
"""


class Snippet(NamedTuple):
    """Commands (`bash`) or a program (`python`) of a section; `theirs`: it imports the other package."""

    section: str
    language: str
    text: str
    theirs: bool = False


class Page(NamedTuple):
    """A page: the package that it is about, its environment, and the modules of others that its programs import."""

    package: str
    environment: str
    modules: tuple[str, ...]

    def imports(self, text: str) -> bool:
        """Whether a program imports the package."""
        return re.search(rf"^(?:import|from) {re.escape(self.modules[0])}\b", text, re.MULTILINE) is not None


PAGES = {
    "caffe": Page("protobuf", "caffe", ("google.protobuf", "lmdb")),
    "dali": Page("nvidia-dali-cuda120", "dali", ("nvidia.dali", "torch")),
    "ffcv": Page("ffcv", "ffcv", ("ffcv",)),
    "hugging-face": Page("datasets", "torch", ("datasets", "torchvision")),
    "litdata": Page("litdata", "litdata", ("litdata", "torchvision")),
    "mosaicml": Page("mosaicml-streaming", "mosaicml", ("streaming", "torchvision")),
    "tf-data": Page("tensorflow-cpu", "tensorflow", ("tensorflow",)),
    "webdataset": Page("webdataset", "torch", ("webdataset", "torchvision")),
}


def snippets(name: str) -> list[Snippet]:
    """The commands and programs of a page, from top to bottom."""
    found: list[Snippet] = []
    for part in re.split(r"^## ", (DOCUMENTS / f"{name}.md").read_text(), flags=re.MULTILINE)[1:]:
        section = part.splitlines()[0]
        blocks = re.findall(r"^```(bash|python)\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
        found += [Snippet(section, language, text) for language, text in blocks if language == "bash"]
        program = "\n".join(text for language, text in blocks if language == "python")
        if program:
            found.append(Snippet(section, "python", program, PAGES[name].imports(program)))
    return found


def write_images(folder: Path) -> list[int]:
    """Write `images/` in a folder, and return the labels of `images/train`, in the order of the paths."""
    rng = np.random.default_rng(0)
    for split, count in SPLITS.items():
        for name in CLASSES:
            (folder / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                small = Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8))
                image = small.resize((320, 280), Image.Resampling.BICUBIC)
                image.save(folder / "images" / split / name / f"{name}_{number:02d}.JPEG", quality=90)
    return [label for label in range(len(CLASSES)) for _ in range(SPLITS["train"])]


def run(snippet: Snippet, folder: Path, python: Path) -> None:
    """Run commands, or a program with the interpreter `python`, in a folder. Raises `ValueError` if one fails."""
    with tempfile.TemporaryDirectory() as beside:
        if snippet.language == "bash":
            command = ["bash", "-euo", "pipefail", "-c", snippet.text]
        else:
            program = Path(beside, "program.py")  # a file: LitData starts processes that import it again
            program.write_text(snippet.text + (_HAD_BATCHES if snippet.section == "Before" else ""))
            command = [os.fspath(python), os.fspath(program)]
        own = _environment(Path(beside))
        ended = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=TIMEOUT)
    if ended.returncode:
        raise ValueError(f"status {ended.returncode} of {snippet.text.splitlines()[0]}: {ended.stderr[-2000:]}")


def _environment(beside: Path) -> dict[str, str]:
    """Variables for a program or command, with `iofast` of this checkout as a command and as a package."""
    (beside / "sitecustomize.py").write_text(_SITE)
    command = beside / "iofast"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m iofast "$@"\n')
    command.chmod(0o755)
    paths = [str(beside), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
        "DATA_OPTIMIZER_CACHE_FOLDER": str(beside / "chunks"),  # of LitData, not in the home folder
        "DATA_OPTIMIZER_DATA_CACHE_FOLDER": str(beside / "data"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def attempt(name: str) -> tuple[str, bool]:
    """Run a page: the result in words, and whether it failed."""
    try:
        theirs = ENVIRONMENTS[PAGES[name].environment].python()
    except Missing as missing:
        return f"not run: {missing}", False
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder))
        try:
            for snippet in snippets(name):
                run(snippet, Path(folder), theirs if snippet.theirs else Path(sys.executable))
        except (subprocess.SubprocessError, ValueError, OSError) as error:
            return f"FAILED: {error}", True
    return "its commands and programs work as printed", False
