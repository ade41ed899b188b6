"""The environments of the peers, made once under build/interop/ with the versions that the table names."""

import tomllib

from tools.environments import ROOT, Environment

FOLDER = ROOT / "build" / "interop"
TORCH = "torch==2.13.0"
ENERGON = ("deprecation", "click", "tqdm", "pyyaml", "pillow")
# The requirements that their pages import, without Streaming's clouds and FFCV's benchmarks.
MOSAICML = ("torchvision", "transformers<5", "numpy<2.2", "catalogue<3", "filelock", "tqdm", "xxhash<4")
MOSAICML_ZIP = ("brotli", "zstd<2", "python-snappy<1")  # imported whatever is written
OWN = tuple(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])  # where both are imported
FFCV = ("numba==0.68.0", "opencv-python-headless", "tqdm", "pillow", "setuptools")  # the last is for its distutils
# Packages share an environment if they can, so that torch is installed once.
_REQUIREMENTS = {
    "torch": (TORCH, "webdataset==1.0.2", "timm==1.0.30", "datasets==5.2.0", "tfrecord==1.14.6", "lmdb==3.0.0"),
    "wids": (TORCH, "wids==0.1.11", "braceexpand", "numpy", "pillow"),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "dali": ("nvidia-dali-cuda120==2.4.0", "numpy", TORCH),
    "litdata": (TORCH, "torchvision==0.28.0", "litdata==0.2.76", *OWN),
    "energon": (TORCH, "webdataset==1.0.2", "multi-storage-client", "rapidyaml", "mfusepy", "filetype", *ENERGON),
    "caffe": ("lmdb==3.0.0", "protobuf==6.33.1", *OWN),
    "mosaicml": (TORCH, *MOSAICML, *MOSAICML_ZIP, *OWN),
    "ffcv": (TORCH, *FFCV, *OWN),
}
# Installed without their requirements. Energon: s3fs, for which pip tries versions of botocore for over five minutes,
# and which is needed for clouds only. FFCV: a second OpenCV.
_ALONE = {
    "energon": ("megatron-energon==7.4.1",),
    "mosaicml": ("mosaicml-streaming==0.13.0",),
    "ffcv": ("ffcv==1.0.2",),
}
# The libraries that an environment is compiled against, by pkg-config's names, and their Debian packages.
_SYSTEM = {"ffcv": (("opencv4", "libturbojpeg"), "g++ pkg-config libopencv-dev libturbojpeg0-dev")}
ENVIRONMENTS = {
    name: Environment(FOLDER / name, needs, _ALONE.get(name, ()), *_SYSTEM.get(name, ((), "")))
    for name, needs in _REQUIREMENTS.items()
}
