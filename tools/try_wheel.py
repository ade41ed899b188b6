"""Try an installed wheel: the native kernel, packing, reading, verifying, the monitor, and loading if torch is there.

    python tools/try_wheel.py

Runs from any folder, without a checkout, and imports nothing but what the wheel asks for.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from iofast import kernel, pack
from iofast.opening import open_reader

COUNT = 40
_BUSY = "while True: sum(range(100_000))"  # a program to watch


def main() -> int:
    about = kernel.describe()
    print(sys.version.split()[0], about)
    if kernel.backend != "native":
        raise SystemExit(f"expected the native kernel, found {kernel.backend}")
    with tempfile.TemporaryDirectory() as folder:
        images, packed = Path(folder, "images"), Path(folder, "out.lmdb")
        for number in range(COUNT):
            place = images / f"class{number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (9, 12, 3), np.uint8)
            Image.fromarray(pixels).resize((400, 300), Image.Resampling.BICUBIC).save(place / f"{number}.jpg")
        pack(images, packed, resize=64)
        with open_reader(packed) as reader:
            if len(reader) != COUNT:
                raise SystemExit(f"expected {COUNT} records, found {len(reader)}")
        for words in (["info", packed], ["verify", packed], ["doctor"]):
            subprocess.run([sys.executable, "-m", "iofast", *map(os.fspath, words)], check=True, stdout=subprocess.PIPE)
        watch()
        if importlib.util.find_spec("torch"):
            load(packed)
    print("it works")
    return 0


def watch() -> None:
    """A verdict on a busy process."""
    with subprocess.Popen([sys.executable, "-c", _BUSY]) as busy:
        try:
            words = ["monitor", "--pid", str(busy.pid), "--once", "--seconds", "4", "--json"]
            said = subprocess.run([sys.executable, "-m", "iofast", *words], check=True, capture_output=True, text=True)
        finally:
            busy.kill()
    if "verdict" not in json.loads(said.stdout):
        raise SystemExit(f"expected a verdict of the monitor, found {said.stdout:.200}")


def load(packed: Path) -> None:
    """An epoch of crops."""
    import torch

    from iofast import FastDataset, FastLoader
    from iofast import transforms as T
    from iofast.gpu import compiled

    if 'extern "C" __global__' not in compiled.source():
        raise SystemExit("expected the kernel's source for a GPU in the wheel")
    loader = FastLoader(FastDataset(packed), 8, shuffle=True, transform=T.train(32), dtype=torch.float32)
    shapes = {tuple(images.shape) for images, _ in loader}
    if shapes != {(8, 3, 32, 32)}:
        raise SystemExit(f"expected batches of (8, 3, 32, 32), found {shapes}")
    print("loaded", len(loader), "batches with torch", torch.__version__)


if __name__ == "__main__":
    sys.exit(main())
