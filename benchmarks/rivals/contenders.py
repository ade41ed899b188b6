"""The rivals: their environments and scripts, and what they have to do."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.environments import ROOT, Environment
from tools.interop import environments as interop

FOLDER = ROOT / "build" / "rivals"
PEERS = Path(__file__).parent / "peers"
OWN = "iofast"  # this project's own environment
TORCH = ("torch==2.14.1", "torchvision==0.29.1", "psutil", "numpy", "pillow")
TRAINED = "torch==2.13.0"  # trains the network of the case training
DECODING = ("opencv-python-headless==5.0.0.93", "simplejpeg==1.9.0")
CODECS = ("torchcodec==0.16.0", "nvidia-nvimgcodec-cu12==0.9.0.20", "datago==2026.10.1")
CONTAINERS = ("webdataset==1.0.2", "litdata==0.2.76", "pylance==14.0.2", "datasets==5.2.0")
GRAIN, SPDL = ("grain==0.2.18", "array_record==0.8.6"), ("spdl==0.8.0",)
# FFCV: on torch's build for processors; the last is for its distutils.
FFCV = (TRAINED, "numba==0.68.0", DECODING[0], "tqdm", "pillow", "setuptools", "psutil")
_MOSAICML = interop.ENVIRONMENTS["mosaicml"]  # alone: its transformers does not fit the hub's client of datasets
_REQUIREMENTS = {
    "torch": (*TORCH, *DECODING, *CODECS, *CONTAINERS, *GRAIN, *SPDL),
    "mosaicml": (*_MOSAICML.requirements, *DECODING),
    "ffcv": FFCV,
    "dali": ("nvidia-dali-cuda120==2.4.0", "numpy", TRAINED),
    "tensorflow": ("tensorflow-cpu==2.21.0", TRAINED),
    "turboloader": ("turboloader==2.39.0", "numpy", TRAINED),
    "pillow-simd": (TRAINED, "numpy", "pillow-simd==12.1.1.post0", *DECODING),
    "img2dataset": ("img2dataset==1.47.0", "numpy"),
}
_FLAGS = {"pillow-simd": "-mavx2"}  # as its README says
_ALONE = {"ffcv": ("ffcv==1.0.2",), "mosaicml": _MOSAICML.alone}  # FFCV requires a second OpenCV
_SYSTEM = {"ffcv": (("opencv4", "libturbojpeg"), "g++ pkg-config libopencv-dev libturbojpeg0-dev")}
ENVIRONMENTS = {
    name: Environment(FOLDER / name, needs, _ALONE.get(name, ()), *_SYSTEM.get(name, ((), "")), _FLAGS.get(name, ""))
    for name, needs in _REQUIREMENTS.items()
}


class Contender(NamedTuple):
    """A loader as a row of the tables.

    reads   what its data is made of: files (256 pixels, quality 90, or the originals), blob (the same in one file), or
            the suffix of its own container
    cases   what it can do
    """

    label: str
    package: str
    environment: str
    script: str
    variant: str
    reads: str
    cases: tuple[str, ...]

    @property
    def version(self) -> str:
        """The package with its version, as pinned; of this project's own environment the package alone."""
        pinned = "" if self.environment == OWN else ENVIRONMENTS[self.environment].pinned(self.package)
        return f"{self.package} {pinned}".rstrip()

    @property
    def name(self) -> str:
        """Of its containers."""
        return OWN if self.environment == OWN else self.script.removesuffix("_loop.py")

    @property
    def command(self) -> tuple[Path, Path]:
        """The words that begin its command line. Raises `Missing`."""
        own = self.environment == OWN
        return Path(sys.executable) if own else ENVIRONMENTS[self.environment].python(), PEERS / self.script


def _rows(environment: str, script: str, *rows: str) -> Iterator[Contender]:
    """Rows of `label | package | variant | reads | cases` of a script."""
    for row in rows:
        label, package, variant, reads, cases = (each.strip() for each in row.split("|"))
        yield Contender(label, package, environment, f"{script}_loop.py", variant, reads, tuple(cases.split()))


CONTENDERS = (
    *_rows(
        OWN,
        "iofast",
        "iofast | iofast | lmdb | lmdb | crop one float32 bfloat16 centre recipe training cold packing",
        "iofast, plain JPEGs | iofast | plain | plain.lmdb | crop float32",
        "iofast, raw pixels | iofast | rgb | rgb.lmdb | crop float32 cold",
        "iofast, a folder | iofast | folder | files | crop originals",
    ),
    *_rows(
        "torch",
        "torch",
        "DataLoader, Pillow | torch | pillow | files | crop one originals",
        "DataLoader, simplejpeg | simplejpeg | simplejpeg | files | crop float32 bfloat16 training cold",
        "DataLoader, nvImageCodec | nvidia-nvimgcodec-cu12 | nvimagecodec | files | crop",
        "DataLoader, OpenCV | opencv-python-headless | opencv | files | crop",
        "DataLoader, TorchCodec | torchcodec | torchcodec | files | crop originals",
        "DataLoader, torchvision | torchvision | torchvision | files | "
        "crop one float32 centre recipe training originals",
    ),
    *_rows(
        "torch",
        "spdl",
        "SPDL, FFmpeg | spdl | ffmpeg | files | crop one float32 centre training originals",
        "SPDL, simplejpeg | spdl | simplejpeg | files | crop float32 bfloat16 centre training",
    ),
    *_rows("pillow-simd", "torch", "DataLoader, Pillow-SIMD | pillow-simd | pillow | files | crop originals"),
    *_rows("torch", "datago", "datago | datago | file | files | crop float32 originals"),
    *_rows("torch", "webdataset", "WebDataset | webdataset | tar | tars | crop float32 centre training cold"),
    *_rows("mosaicml", "mosaicml", "MosaicML Streaming | mosaicml-streaming | mds | mds | crop float32 cold"),
    *_rows("torch", "litdata", "LitData | litdata | chunks | chunks | crop float32 cold"),
    *_rows("torch", "grain", "Grain | grain | threads | arrayrecord | crop float32"),
    *_rows("torch", "lance", "Lance | pylance | take | lance | crop float32"),
    *_rows("torch", "hf_datasets", "Hugging Face datasets | datasets | parquet | parquet | crop float32"),
    *_rows(
        "ffcv",
        "ffcv",
        "FFCV, jpg | ffcv | jpg | beton | crop one float32 bfloat16 centre training cold packing",
        "FFCV, raw | ffcv | raw | raw.beton | crop float32 training cold",
    ),
    *_rows(
        "dali",
        "dali",
        "DALI, CPU | nvidia-dali-cuda120 | cpu | files | crop one float32 centre recipe training originals cold",
    ),
    *_rows(
        "tensorflow",
        "tf_data",
        "tf.data | tensorflow-cpu | plain | tfrecord | crop one float32 bfloat16 centre training cold",
        "tf.data, antialias | tensorflow-cpu | antialias | tfrecord | crop float32",
    ),
    *_rows(
        "turboloader",
        "turboloader",
        "TurboLoader, tar | turboloader | tar | tar | float32 training",
        "TurboLoader, tbl | turboloader | tbl | tbl | float32",
    ),
    *_rows(OWN, "writers", "Pillow, a pool of processes | pillow | pillow | files | packing"),
    *_rows("img2dataset", "writers", "img2dataset | img2dataset | img2dataset | files | packing"),
    *_rows(
        OWN,
        "limits",
        "limit: full decode, libjpeg-turbo 2.1 | iofast | turbojpeg | blob | crop originals",
        "limit: full decode, libjpeg-turbo 3.1 | simplejpeg | simplejpeg | files | crop",
        "limit: our resampler alone | iofast | resampler | rgb.lmdb | crop",
        "limit: copying the pixels | iofast | copy | files | crop",
        "limit: no loader | iofast | memory | files | training",
    ),
)


class Case(NamedTuple):
    """A table of the page.

    wanted      `Options.case` of the scripts
    source      prepared (256 pixels, quality 90) or originals
    workers     threads or processes; None: as many as the command line says
    is_trained  a small network trains on the batches, on the same cores
    is_cold     everything is evicted from the page cache before each epoch, and the disk is slowed down
    short       its name in the README's table; those without one are not in it
    """

    title: str
    wanted: str
    source: str = "prepared"
    workers: int | None = None
    is_trained: bool = False
    is_cold: bool = False
    short: str = ""


CASES = {
    "crop": Case("Random crops: RandomResizedCrop(224) and a flip, uint8", "crop", short="random crops"),
    "one": Case("The same with one worker", "crop", workers=1),
    "float32": Case("The same, normalised to float32", "float32", short="random crops, float32"),
    "bfloat16": Case("The same, normalised to bfloat16", "bfloat16"),
    "centre": Case("Evaluation: Resize(256) and CenterCrop(224), uint8", "centre", short="centre crops"),
    "recipe": Case(
        "A recipe: random crops, ColorJitter, RandAugment, float32", "recipe", short="ColorJitter and RandAugment"
    ),
    "originals": Case(
        "Random crops of the original photographs in a folder", "crop", "originals", short="crops of original files"
    ),
    "training": Case(
        "A small network trained on float32 crops, on the same cores",
        "float32",
        is_trained=True,
        short="while a small network trains",
    ),
    "cold": Case("Random crops from a disk of 50 MB/s, nothing in the page cache", "crop", is_cold=True),
    "packing": Case(
        "Packing the original photographs: a short side of 256 pixels, quality 90",
        "packing",
        "originals",
        short="packing",
    ),
}
