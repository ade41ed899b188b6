"""Packing runs that are interrupted, or whose workers run another program, and digests of their output."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_sets import Quiet
from PIL import Image

from iofast import open_reader
from iofast.containers import targets
from iofast.packing import PackOptions, PackReport
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.run import run

TRANSACTION = 5_000  # bytes of a section of LMDB in interrupted runs


def interrupt(source: Path, target: Path, steps: int, **options: Any) -> None:
    """Pack with one worker, interrupted after `steps` chunks; a file of LMDB has many sections."""
    with pytest.MonkeyPatch.context() as patch, WorkerPool(1) as workers:
        patch.setattr(targets, "TRANSACTION_BYTES", TRANSACTION)
        with pytest.raises(KeyboardInterrupt, match="goes on from there"):
            run(source, target, PackOptions(**options), Quiet(steps, KeyboardInterrupt()), workers)


def pack_with(source: Path, target: Path, program: str, *arguments: str, **options: Any) -> PackReport:
    """Pack with two workers that run `program`; `silence` is an option of the pool."""
    silence = options.pop("silence", 60)
    with WorkerPool(2, (sys.executable, "-c", program, *arguments), silence=silence) as pool:
        return run(source, target, PackOptions(**options), PackProgress(), pool)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(folder: Path, prefix: str = "") -> dict[str, str]:
    """The files of a folder whose names begin with `prefix`; of LMDB the contents, which runs order in other pages."""
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name.startswith(prefix))
    return {path.name: contents(path) if path.suffix == ".lmdb" else sha256(path) for path in files}


def contents(path: Path) -> str:
    """A digest of the records of a container, and of what its manifest says of them."""
    with open_reader(path) as reader:
        manifest = reader.manifest
        told = (manifest.fingerprint, manifest.splits, manifest.classes, manifest.recipe, manifest.seed)
        return hashlib.sha256(repr((told, [(each.key, each.fields) for each in reader])).encode()).hexdigest()


def repeated_images(root: Path, count: int = 100, classes: str = "abc", damaged: Sequence[int] = (4, 50, 99)) -> Path:
    """`count` pictures in classes, many of them equal, some in another class, and damaged files."""
    rng = np.random.default_rng(5)
    for number in range(count):
        path = root / classes[number % len(classes)] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), (int(rng.integers(40)) * 6, 0, 0)).save(path)
        if number in damaged:
            path.write_bytes(path.read_bytes()[:40])
    return root
