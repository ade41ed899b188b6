"""The rivals: their environments, scripts and cases."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from tools.environments import ROOT, Environment
from tools.interop import environments as interop

FOLDER = ROOT / "build" / "rivals"
PEERS = Path(__file__).parent / "peers"
OWN = "iofast"  # this project's own environment
TORCH = ("torch==2.14.1", "torchvision==0.29.1", "psutil", "numpy", "pillow")
DECODING = ("opencv-python-headless==5.0.0.93", "simplejpeg==1.9.0")
CONTAINERS = ("webdataset==1.0.2", "litdata==0.2.76", "pylance==14.0.2", "datasets==5.2.0")
GRAIN, SPDL = ("grain==0.2.18", "array_record==0.8.6"), ("spdl==0.8.0",)
# FFCV: on torch's build for processors; the last is for its distutils.
FFCV = ("torch==2.13.0", "numba==0.68.0", DECODING[0], "tqdm", "pillow", "setuptools", "psutil")
_MOSAICML = interop.ENVIRONMENTS["mosaicml"]  # alone: its transformers does not fit the hub's client of datasets
_REQUIREMENTS = {
    "torch": (*TORCH, *DECODING, *CONTAINERS, *GRAIN, *SPDL),
    "mosaicml": (*_MOSAICML.requirements, *DECODING),
    "ffcv": FFCV,
    "dali": ("nvidia-dali-cuda120==2.4.0", "numpy"),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "turboloader": ("turboloader==2.39.0", "numpy"),
}
_ALONE = {"ffcv": ("ffcv==1.0.2",), "mosaicml": _MOSAICML.alone}  # FFCV requires a second OpenCV
_SYSTEM = {"ffcv": (("opencv4", "libturbojpeg"), "g++ pkg-config libopencv-dev libturbojpeg0-dev")}
ENVIRONMENTS = {
    name: Environment(FOLDER / name, needs, _ALONE.get(name, ()), *_SYSTEM.get(name, ((), "")))
    for name, needs in _REQUIREMENTS.items()
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
THREE = ("crop", "float32", "centre")
CONTENDERS = (
    Contender("iofast", "iofast", OWN, "iofast_loop.py", "lmdb", "lmdb", ALL),
    Contender("iofast, raw pixels", "iofast", OWN, "iofast_loop.py", "rgb", "rgb.lmdb", ("crop", "float32")),
    Contender("iofast, a folder", "iofast", OWN, "iofast_loop.py", "folder", "files", ("crop", "originals")),
    Contender("DataLoader, Pillow", "torch", "torch", "torch_loop.py", "pillow", "files", ("crop", "originals")),
    Contender("DataLoader, simplejpeg", "torch", "torch", "torch_loop.py", "simplejpeg", "files", ("crop", "float32")),
    Contender("DataLoader, torchvision", "torchvision", "torch", "torch_loop.py", "torchvision", "files", ALL),
    Contender("SPDL, FFmpeg", "spdl", "torch", "spdl_loop.py", "ffmpeg", "files", (*THREE, "originals")),
    Contender("SPDL, simplejpeg", "spdl", "torch", "spdl_loop.py", "simplejpeg", "files", THREE),
    Contender("WebDataset", "webdataset", "torch", "webdataset_loop.py", "tar", "tars", THREE),
    Contender("MosaicML Streaming", "mosaicml-streaming", "mosaicml", "mosaicml_loop.py", "mds", "mds", THREE),
    Contender("LitData", "litdata", "torch", "litdata_loop.py", "chunks", "chunks", THREE),
    Contender("Grain", "grain", "torch", "grain_loop.py", "threads", "arrayrecord", THREE),
    Contender("Lance", "pylance", "torch", "lance_loop.py", "take", "lance", THREE),
    Contender("Hugging Face datasets", "datasets", "torch", "hf_datasets_loop.py", "parquet", "parquet", THREE),
    Contender("FFCV, jpg", "ffcv", "ffcv", "ffcv_loop.py", "jpg", "beton", THREE),
    Contender("FFCV, raw", "ffcv", "ffcv", "ffcv_loop.py", "raw", "raw.beton", ("crop", "float32")),
    Contender("DALI, CPU", "nvidia-dali-cuda120", "dali", "dali_loop.py", "cpu", "files", (*ALL, "originals")),
    Contender("tf.data", "tensorflow-cpu", "tensorflow", "tf_data_loop.py", "plain", "tfrecord", THREE),
    Contender(
        "tf.data, antialias", "tensorflow-cpu", "tensorflow", "tf_data_loop.py", "antialias", "tfrecord", THREE[:2]
    ),
    Contender("TurboLoader, tar", "turboloader", "turboloader", "turboloader_loop.py", "tar", "tar", ("float32",)),
    Contender("TurboLoader, tbl", "turboloader", "turboloader", "turboloader_loop.py", "tbl", "tbl", ("float32",)),
)
