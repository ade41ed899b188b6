"""What a type checker knows about batches."""

from __future__ import annotations

from pathlib import Path

import pytest

USER = """
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
FastLoader(pairs, batchsize=8)  # type: ignore[call-overload]
"""


def test_batches_are_typed(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "user.py").write_text(USER)
    found, errors, status = api.run(["--strict", str(tmp_path / "user.py")])
    assert (found + errors, status) == ("Success: no issues found in 1 source file\n", 0)
