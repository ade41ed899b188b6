"""The rivals: their environments, scripts and cases."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from tools.environments import ROOT, Environment

FOLDER = ROOT / "build" / "rivals"
PEERS = Path(__file__).parent / "peers"
OWN = "iofast"  # this project's own environment
TORCH = ("torch==2.14.1", "torchvision==0.29.1", "psutil", "numpy", "pillow")
ENVIRONMENTS = {
    name: Environment(FOLDER / name, needs)
    for name, needs in {
        "torch": (*TORCH, "opencv-python-headless==5.0.0.93", "simplejpeg==1.9.0"),
    }.items()
}


class Contender(NamedTuple):
    """A loader as a row of the tables.

    reads   what its data is made of: originals, files (256 pixels, quality 90), or with a suffix: its own container
    cases   what it can do; crop, float32, centre, recipe and, on the original photographs, originals
    """

    label: str
    package: str
    environment: str
    script: str
    variant: str
    reads: str
    cases: tuple[str, ...]

    @property
    def python(self) -> Path:
        """The interpreter that runs it. Raises `Missing`."""
        return Path(sys.executable) if self.environment == OWN else ENVIRONMENTS[self.environment].python()


ALL = ("crop", "float32", "centre", "recipe")
CONTENDERS = (
    Contender("iofast", "iofast", OWN, "iofast_loop.py", "lmdb", "lmdb", ALL),
    Contender("iofast, raw pixels", "iofast", OWN, "iofast_loop.py", "rgb", "rgb.lmdb", ("crop", "float32")),
    Contender("iofast, a folder", "iofast", OWN, "iofast_loop.py", "folder", "files", ("crop", "originals")),
    Contender("DataLoader, Pillow", "torch", "torch", "torch_loop.py", "pillow", "files", ("crop", "originals")),
    Contender("DataLoader, simplejpeg", "torch", "torch", "torch_loop.py", "simplejpeg", "files", ("crop", "float32")),
    Contender("DataLoader, torchvision", "torchvision", "torch", "torch_loop.py", "torchvision", "files", ALL),
)
