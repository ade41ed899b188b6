"""torch's DataLoader with what people decode with. Variants: pillow, simplejpeg, and with torchvision: torchvision.

pillow and simplejpeg: see `benchmarks.peers.datasets`. torchvision: `decode_image` to tensors and transforms v2, as
torchvision's references do by default since 0.15. Persistent workers, which torch recommends; no pinned memory, since
there is no GPU to copy to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from protocol import MEAN, STD, Options, Seen, main, no_pack

from tools.pillow_folder import files_by_class


def load(options: Options) -> tuple[Any, Any]:
    files = files_by_class(Path(options.data))
    if options.variant == "torchvision":
        return _torchvision(files, options), lambda batch: (len(batch[1]), batch[0])
    from benchmarks.peers import datasets

    make = {"pillow": datasets.pillow_loader, "simplejpeg": datasets.simplejpeg_loader}[options.variant]
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (MEAN, STD))

    def seen(batch: Any) -> Seen:
        images, labels = batch
        return len(labels), (images.float().div_(255) - mean) / std if options.is_float else images

    return make(files, options.batch, options.workers), seen


class _Files(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, files: Any, transform: Any) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from torchvision.io import ImageReadMode, decode_image

        path, label = self.files[index]
        return self.transform(decode_image(str(path), ImageReadMode.RGB)), label


def _torchvision(files: Any, options: Options) -> Any:
    from torchvision.transforms import v2 as t

    crop = [t.RandomResizedCrop(options.size, antialias=True), t.RandomHorizontalFlip()]
    normalize = [t.ToDtype(torch.float32, scale=True), t.Normalize(MEAN, STD)]
    steps = {
        "crop": crop,
        "float32": [*crop, *normalize],
        "centre": [t.Resize(256, antialias=True), t.CenterCrop(options.size)],
        "recipe": [*crop, t.ColorJitter(0.4, 0.4, 0.4, 0.1), t.RandAugment(2, 9), *normalize],
    }[options.case]
    made = {"num_workers": options.workers, "persistent_workers": True, "shuffle": options.case != "centre"}
    return torch.utils.data.DataLoader(_Files(files, t.Compose(steps)), options.batch, **made)


if __name__ == "__main__":
    main(load, no_pack)
