"""What a network sees: its answers on batches from iofast and on the same crops made by Pillow are the same."""

from __future__ import annotations

from io import BytesIO
from typing import NamedTuple

import numpy as np
import pytest
import torch
from kernel_images import native
from PIL import Image
from torch import nn

from iofast import FastDataset, FastLoader, kernel, pack
from iofast import transforms as T
from iofast.bench import BenchOptions, FirstImages
from iofast.transforms import compile as compile_transform
from tools import sample_photographs

pytestmark = pytest.mark.slow  # 25 s of training

SIDE, PER_CLASS, STEPS = 96, 60, 60
CROP = [T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip()]


def train(images: torch.Tensor, labels: torch.Tensor) -> nn.Sequential:
    """A small network that tells the sample photographs' classes apart; the same one each time."""
    torch.manual_seed(7)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(288, int(labels.max()) + 1),
    )
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for step in range(STEPS):
        rows = torch.arange(step * 64, step * 64 + 64) % len(labels)
        loss = nn.functional.cross_entropy(network(images[rows].float() / 255), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def pillow_crops(dataset: FastDataset) -> torch.Tensor:
    """The crops of epoch 0, cut and resized by Pillow from what Pillow decodes."""
    sample = FirstImages(dataset, compile_transform(CROP), len(dataset), BenchOptions())
    crops = np.empty((sample.count, SIDE, SIDE, 3), np.uint8)
    for row, index in enumerate(sample.located.indices.tolist()):
        with Image.open(BytesIO(dataset.reader.view(index))) as file:
            x0, y0, x1, y1 = sample.boxes[row, :4].tolist()
            image = file.convert("RGB").crop((x0, y0, x1, y1)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        crops[row] = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if sample.flips[row] else image
    return torch.from_numpy(crops).permute(0, 3, 1, 2)


class Seen(NamedTuple):
    """The same crops from iofast and from Pillow, and a network trained on Pillow's."""

    ours: torch.Tensor
    theirs: torch.Tensor
    network: nn.Sequential
    ways: dict[str, int]

    def answers(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.network(images.float() / 255).argmax(1)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("agreement")
    sample_photographs.make(folder / "photos", PER_CLASS, val=1, quiet=True)
    pack(folder / "photos" / "train", folder / "packed.lmdb", resize=160, workers=2)
    dataset = FastDataset(folder / "packed.lmdb")
    loader = FastLoader(dataset, len(dataset), shuffle=True, transform=CROP)
    ours, labels = next(iter(loader))
    theirs = pillow_crops(dataset)
    return Seen(ours, theirs, train(theirs, labels), loader.stats.ways)


def test_top_1_agrees_with_pillow(seen: Seen) -> None:
    ours, theirs = seen.answers(seen.ours), seen.answers(seen.theirs)
    assert len(theirs.unique()) > 3  # a network of one opinion would agree with anything
    assert (ours == theirs).float().mean().item() >= 0.995
    if native and kernel.simd != "scalar":  # without vector loops libjpeg decodes
        assert seen.ways["segments"] == len(ours)


def test_the_measure_can_fail(seen: Seen) -> None:
    """Noise changes some of this network's answers: agreement is not given for free."""
    noise = 20 * torch.randn(seen.theirs.shape, generator=torch.Generator().manual_seed(0))
    off = (seen.theirs.float() + noise).clamp(0, 255)
    assert (seen.answers(off) == seen.answers(seen.theirs)).float().mean().item() < 0.995
