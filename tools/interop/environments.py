"""The environments of the peers, made once under build/interop/ with the versions that the table names."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "interop"
TORCH = "torch==2.13.0"
ENERGON = ("deprecation", "click", "tqdm", "pyyaml", "pillow")
# What goes together where nothing speaks against it, so that torch is installed once.
REQUIREMENTS = {
    "torch": (TORCH, "webdataset==1.0.2", "timm==1.0.30", "datasets==5.2.0", "tfrecord==1.14.6", "lmdb==3.0.0"),
    "wids": (TORCH, "wids==0.1.11", "braceexpand", "numpy", "pillow"),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "dali": ("nvidia-dali-cuda120==2.4.0", "numpy"),
    "energon": (TORCH, "webdataset==1.0.2", "multi-storage-client", "rapidyaml", "mfusepy", "filetype", *ENERGON),
    "caffe": ("lmdb==3.0.0", "protobuf==6.33.1"),
}
# Installed alone. Energon asks for s3fs, for which pip tries versions of botocore for longer than five minutes, and
# which it does without where nothing is in the cloud.
ALONE = {"energon": ("megatron-energon==7.4.1",)}
TIMEOUT = 900  # seconds for one environment: torch alone takes two minutes on a slow line


class Missing(Exception):  # noqa: N818 (it is a fact about this machine, and the table says it)
    """The environment cannot be made here. The message says why, in pip's words."""


def python(name: str) -> Path:
    """The interpreter of an environment, which is made where it is not there yet. Raises `Missing`."""
    folder = FOLDER / name
    wanted = " ".join((*REQUIREMENTS[name], *ALONE.get(name, ())))
    stamp = folder / ".installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=120)
        _install(folder, *REQUIREMENTS[name])
        if name in ALONE:
            _install(folder, "--no-deps", *ALONE[name])
        stamp.write_text(wanted)
    return folder / "bin" / "python"


def versions(name: str) -> dict[str, str]:
    """What is installed in an environment: package to version."""
    program = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    listed = subprocess.run([python(name), "-c", program], capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, str] = json.loads(listed.stdout)
    return {package.lower().replace("_", "-"): version for package, version in found.items()}


def _install(folder: Path, *requirements: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", *shlex.split(os.environ.get("PIP_ARGS", ""))]
    try:
        made = subprocess.run(
            [folder / "bin" / "python", "-m", "pip", "install", *options, *requirements],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"not installed within {TIMEOUT // 60} minutes") from None
    if made.returncode:
        errors = [line for line in made.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise Missing(errors[-1].removeprefix("ERROR: "))


def identity(data: bytes) -> str:
    """What a payload is told by."""
    return hashlib.sha256(data).hexdigest()
