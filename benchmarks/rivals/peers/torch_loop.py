"""torch's DataLoader with what people decode with.

Variants: pillow, simplejpeg, opencv, nvimagecodec, torchvision, torchcodec. For the first four see
`benchmarks.peers.datasets`. torchvision: `decode_image` and transforms v2 on tensors, which its notes on performance
recommend, normalised by the main process as with the others. torchcodec: its `decode_image`, which torchvision
recommends in place of its own, and the same transforms. Persistent workers, which torch recommends; no pinned memory,
since there is no GPU to copy to.
"""

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decoding import decode, seen_by
from protocol import Options, main, several

from tools.pillow_folder import files_by_class


def load(options: Options) -> tuple[Any, Any]:
    files = files_by_class(Path(options.data))
    if options.variant in ("torchvision", "torchcodec"):
        return _torchvision(files, options), seen_by(options)
    from benchmarks.peers import datasets

    makes = {
        "pillow": datasets.pillow_loader,
        "simplejpeg": partial(datasets.simplejpeg_loader, decode=decode),
        "opencv": partial(datasets.simplejpeg_loader, decode=datasets.by_opencv),
        "nvimagecodec": partial(datasets.simplejpeg_loader, decode=_by_nvimagecodec),
    }
    return makes[options.variant](files, options.batch, options.workers), seen_by(options)


class _Files(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, files: Any, transform: Any, variant: str) -> None:
        self.files, self.transform, self.variant = files, transform, variant

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        return self.transform(DECODERS[self.variant](str(path))), label


def _by_torchvision(path: str) -> torch.Tensor:
    from torchvision.io import ImageReadMode, decode_image

    return decode_image(path, ImageReadMode.RGB)


def _by_torchcodec(path: str) -> torch.Tensor:
    from torchcodec.decoders import decode_image

    image: torch.Tensor = decode_image(path)
    return image


@cache
def _nvimagecodec() -> Any:
    """A decoder for each worker, on the processor."""
    from nvidia import nvimgcodec

    cpu = [nvimgcodec.Backend(nvimgcodec.CPU_ONLY)]
    return nvimgcodec.Decoder(device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, max_num_cpu_threads=1, backends=cpu)


def _by_nvimagecodec(data: bytes) -> Any:
    return np.asarray(_nvimagecodec().decode(data))


DECODERS = {"torchvision": _by_torchvision, "torchcodec": _by_torchcodec}


def _torchvision(files: Any, options: Options) -> Any:
    from torchvision.transforms import v2 as t

    crop = [t.RandomResizedCrop(options.size, antialias=True), t.RandomHorizontalFlip()]
    steps = {
        "crop": crop,
        "float32": crop,
        "centre": [t.Resize(256, antialias=True), t.CenterCrop(options.size)],
        "recipe": [*crop, t.ColorJitter(0.4, 0.4, 0.4, 0.1), t.RandAugment(2, 9)],
    }[options.case]
    images = _Files(files, t.Compose(steps), options.variant)
    return torch.utils.data.DataLoader(images, options.batch, **several(options))


if __name__ == "__main__":
    main(load)
