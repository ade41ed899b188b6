"""TurboLoader's DataLoader on its fast path. Variants: tar, tbl.

tar: a tar of the same JPEG bytes, with `train_aug`, which its README names for training: it decodes the crop only. tbl:
"many epochs on the same dataset", pixels resized once to a square (256 x 256, distorted) by `preprocess_to_tbl`, and
cropped from memory. Batches are float32 only, (N, 3, H, W), so there is no row for uint8; the fast path has no centre
crop, ColorJitter or RandAugment. Its thread pool has a thread per core and no option for another number. Without
prefetching, as here, it was 3 to 11 % faster than with its default of 4 batches. Samples have no labels: they are
looked up by the indices of a batch.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import turboloader
from protocol import Options, main

STORED = 256  # pixels of a side in a tbl


class Epochs:
    """Iterates over epochs in a new order each, which `set_epoch` asks for."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.epoch = loader, 0

    def __iter__(self) -> Iterator[Any]:
        self.loader.set_epoch(self.epoch)
        self.epoch += 1
        yield from self.loader


def load(options: Options) -> tuple[Any, Any]:
    loader = turboloader.DataLoader(
        options.data,
        batch_size=options.batch,
        num_workers=options.workers,
        shuffle=True,
        train_aug=True,
        prefetch_batches=0,
        image_size=options.size,
        output_format="pytorch",
        transform=turboloader.ImageNetNormalize(),
    )
    return Epochs(loader), lambda batch: (len(batch[0]), batch[0])


def pack(source: Path, target: Path, options: Options) -> None:
    archive = target.with_suffix(".tar") if options.variant == "tar" else target.with_suffix(".source.tar")
    with tarfile.open(archive, "w") as tar:
        for path in sorted(source.glob("*/*")):
            tar.add(path, arcname=f"{path.parent.name}/{path.name}")
    if options.variant == "tbl":
        turboloader.preprocess_to_tbl(str(archive), str(target), STORED, num_workers=options.workers)
        archive.unlink()


if __name__ == "__main__":
    main(load, pack)
