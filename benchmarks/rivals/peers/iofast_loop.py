"""FastLoader, as the README uses it.

Variants: lmdb (packed, with restart markers), plain (packed byte by byte, as other programs write JPEGs), rgb (raw
pixels), folder.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from protocol import MEAN, STD, Options, main, pair

from iofast import FastDataset, FastLoader
from iofast import transforms as T

CROP = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
NORMALIZE = T.Normalize(MEAN, STD)
DTYPES = {"crop": torch.uint8, "centre": torch.uint8, "bfloat16": torch.bfloat16}
TRANSFORMS = {
    "crop": CROP,
    "float32": [*CROP, NORMALIZE],
    "centre": [T.Resize(256), T.CenterCrop(224)],
    "bfloat16": [*CROP, NORMALIZE],
    "recipe": [*CROP, T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandAugment(2, 9), NORMALIZE],
}


def load(options: Options) -> tuple[Any, Any]:
    loader = FastLoader(
        FastDataset(options.data),
        options.batch,
        shuffle=options.case != "centre",
        transform=TRANSFORMS[options.case],
        dtype=DTYPES.get(options.case, torch.float32),
        memory_format=torch.channels_last if options.is_trained else torch.contiguous_format,  # as the network is
        num_workers=options.workers,
    )
    return loader, pair


def pack(source: Path, target: Path, options: Options) -> None:
    """Originals become 256 pixels at quality 90; prepared files keep their pixels and get markers."""
    command = [sys.executable, "-m", "iofast", "pack", str(source), str(target), "--quiet"]
    more = {"lmdb": ["--resize", "256"], "plain": [], "rgb": ["--resize", "256", "--format", "rgb"]}
    subprocess.run([*command, *more[options.variant]], check=True)


if __name__ == "__main__":
    main(load, pack)
