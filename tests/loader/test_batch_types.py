"""What a type checker knows about batches."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

USER = """
# pyright: reportUnnecessaryTypeIgnoreComment=error
from typing import Any, assert_type
from torch import Tensor
from iofast import FastDataset, FastLoader, transforms as T

def any_loader(dataset: FastDataset) -> FastLoader:
    return FastLoader(dataset, 8)

pairs, named = FastDataset("out.lmdb"), FastDataset("out.lmdb", fields=["image", "key", "boxes.json"])
for images, labels in FastLoader(pairs, 8, shuffle=True, transform=T.train(224), dtype="float16"):
    assert_type((images, labels), tuple[Tensor, Tensor])
for batch in FastLoader(named, 8, ragged="pad"):
    assert_type((batch["image"], batch["key"], batch["boxes.json"]), tuple[Tensor, list[str], Any])
assert_type(any_loader(named), FastLoader[Any])
assert_type(FastLoader(pairs, transform=T.dino()), FastLoader[Any])
assert_type(FastLoader(pairs, output="numpy"), FastLoader[Any])
assert_type(FastLoader(pairs, ragged="list"), FastLoader[Any])
assert_type(FastLoader(named, map_batch=len), FastLoader[Any])
FastLoader(pairs, batchsize=8)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
"""
CHECKERS = {  # the second is pyright, which editors use, with its own Node.js
    "mypy": ["--strict", "--python-executable"],
    "basedpyright": ["--level", "error", "--pythonpath"],
}


@pytest.mark.parametrize("checker", ["mypy", pytest.param("basedpyright", marks=pytest.mark.interop)])
def test_batches_are_typed(checker: str, tmp_path: Path) -> None:
    program = shutil.which(checker, path=Path(sys.executable).parent) or shutil.which(checker)
    if program is None:
        pytest.skip(f"{checker} is not installed")
    (tmp_path / "user.py").write_text(USER)
    command = [program, *CHECKERS[checker], sys.executable, str(tmp_path / "user.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
