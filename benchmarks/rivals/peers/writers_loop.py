"""Programs that pack and load nothing. Variants: pillow, img2dataset.

pillow: see `benchmarks.peers.pillow_pack`. img2dataset: from a list of file:// URLs to WebDataset shards, with the
options of its README: `resize_mode="keep_ratio"` with the short side, one process per worker. Its resampling filter is
OpenCV's area filter, its default for making images smaller.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from protocol import Options, main

THREADS = 4  # of each process of img2dataset; there is no network to wait for


def load(options: Options) -> NoReturn:
    sys.exit(f"{options.variant} loads nothing")


def pack(source: Path, target: Path, options: Options) -> None:
    {"pillow": _pillow, "img2dataset": _img2dataset}[options.variant](source, target, options)


def _pillow(source: Path, target: Path, _options: Options) -> None:
    command = [sys.executable, "-m", "benchmarks.peers.pillow_pack", str(source), str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _img2dataset(source: Path, target: Path, options: Options) -> None:
    from img2dataset import download

    names = target.with_suffix(".txt")
    names.write_text("".join(f"{path.resolve().as_uri()}\n" for path in sorted(source.glob("*/*"))))
    made: dict[str, Any] = {"image_size": 256, "resize_mode": "keep_ratio", "encode_quality": 90}
    several = {"processes_count": options.workers, "thread_count": THREADS, "number_sample_per_shard": 500}
    download(str(names), output_folder=str(target), output_format="webdataset", **made, **several)


if __name__ == "__main__":
    main(load, pack)
