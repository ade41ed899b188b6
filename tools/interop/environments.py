"""The environments of the peers, made once under build/interop/ with the versions that the table names."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "interop"
TORCH = "torch==2.13.0"
ENERGON = ("deprecation", "click", "tqdm", "pyyaml", "pillow")
# The requirements that writing imports, without Streaming's clouds and FFCV's benchmarks.
MOSAICML = ("torchvision", "transformers<5", "numpy<2.2", "catalogue<3", "filelock", "tqdm", "xxhash<4")
MOSAICML_ZIP = ("brotli", "zstd<2", "python-snappy<1")  # imported whatever is written
FFCV = ("numba==0.68.0", "opencv-python-headless", "tqdm", "pillow", "setuptools")  # the last is for its distutils
# Packages share an environment if they can, so that torch is installed once.
REQUIREMENTS = {
    "torch": (TORCH, "webdataset==1.0.2", "timm==1.0.30", "datasets==5.2.0", "tfrecord==1.14.6", "lmdb==3.0.0"),
    "wids": (TORCH, "wids==0.1.11", "braceexpand", "numpy", "pillow"),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "dali": ("nvidia-dali-cuda120==2.4.0", "numpy"),
    "energon": (TORCH, "webdataset==1.0.2", "multi-storage-client", "rapidyaml", "mfusepy", "filetype", *ENERGON),
    "caffe": ("lmdb==3.0.0", "protobuf==6.33.1"),
    "mosaicml": (TORCH, *MOSAICML, *MOSAICML_ZIP),
    "ffcv": (TORCH, *FFCV),
}
# Installed without their requirements. Energon: s3fs, for which pip tries versions of botocore for over five minutes,
# and which is needed for clouds only. FFCV: a second OpenCV.
ALONE = {
    "energon": ("megatron-energon==7.4.1",),
    "mosaicml": ("mosaicml-streaming==0.13.0",),
    "ffcv": ("ffcv==1.0.2",),
}
# The libraries that an environment is compiled against, by pkg-config's names, and their Debian packages.
SYSTEM = {"ffcv": (("opencv4", "libturbojpeg"), "g++ pkg-config libopencv-dev libturbojpeg0-dev")}
TIMEOUT = 900  # seconds for one environment: torch alone takes two minutes on a slow line


class Missing(Exception):  # noqa: N818 (it is a fact about this machine, and the table says it)
    """The environment cannot be made here; the message gives the reason and the remedy."""


def python(name: str) -> Path:
    """The interpreter of an environment, which is created if needed. Raises `Missing`."""
    folder = FOLDER / name
    wanted = " ".join((*REQUIREMENTS[name], *ALONE.get(name, ())))
    stamp = folder / ".installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        _check_system(name)
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


def _check_system(name: str) -> None:
    modules, packages = SYSTEM.get(name, ((), ""))
    if not modules:
        return
    if shutil.which("pkg-config") is None:
        absent = ["pkg-config"]
    else:
        absent = [module for module in modules if subprocess.run(["pkg-config", "--exists", module]).returncode]
        absent += [] if shutil.which(os.environ.get("CXX", "c++")) else ["a C++ compiler"]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        raise Missing(f"{', '.join(absent)} {verb} not there; as root: apt-get install {packages}")


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
    """The SHA-256 of a payload."""
    return hashlib.sha256(data).hexdigest()
