"""What a type checker knows about batches."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

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
# Of torch the batches need two names. With all of its 1,300 modules mypy takes 30 s; so it runs with --slow.
FEW_NAMES = {
    "torch/__init__.pyi": "from typing import Any\nclass Tensor: ...\ndef __getattr__(name: str) -> Any: ...\n",
    "torch/utils/__init__.pyi": "",
    "torch/utils/data/__init__.pyi": """
from typing import Any, Generic, TypeVar
T = TypeVar("T", covariant=True)
class Dataset(Generic[T]): ...
def __getattr__(name: str) -> Any: ...
""",
    "mypy.ini": """
[mypy]
mypy_path = $MYPY_CONFIG_FILE_DIR
cache_dir = /dev/null
follow_imports = silent
[mypy-torch.*,numpy.*,obstore.*,PIL.*]
follow_imports = skip
follow_imports_for_stubs = True
[mypy-torch,torch.utils,torch.utils.data]
follow_imports = normal
""",
}


@pytest.mark.parametrize(
    ("checker", "few_names"),
    [
        ("mypy", FEW_NAMES),
        pytest.param("mypy", {}, marks=pytest.mark.slow),
        pytest.param("basedpyright", {}, marks=pytest.mark.interop),
    ],
)
def test_batches_are_typed(checker: str, few_names: dict[str, str], tmp_path: Path) -> None:
    program = shutil.which(checker, path=Path(sys.executable).parent) or shutil.which(checker)
    if program is None:
        pytest.skip(f"{checker} is not installed")
    for name, text in {**few_names, "user.py": USER}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [program, *CHECKERS[checker], sys.executable, str(tmp_path / "user.py")]
    command += ["--config-file", str(tmp_path / "mypy.ini")] if few_names else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
