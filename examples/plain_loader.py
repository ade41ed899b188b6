"""A classifier trained through a plain DataLoader, as many begin: where docs/by-advice.md starts.

    iofast monitor --once -- python examples/plain_loader.py

It trains on the folder `images` (a folder for each class) for a minute, and prints the images a second. The network is
small on purpose: it stands for a fast GPU beside few processor cores.
"""

import os
from itertools import chain, repeat
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 224
SECONDS = float(os.environ.get("SECONDS", "60"))


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """Normalised crops of random size and place, and class numbers."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(path for path in Path(root).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
        self.classes = sorted({path.parent.name for path in self.paths})

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        with Image.open(path) as image:
            share = np.random.uniform(0.08, 1) ** 0.5
            width, height = max(1, int(image.width * share)), max(1, int(image.height * share))
            left, top = np.random.randint(image.width - width + 1), np.random.randint(image.height - height + 1)
            box = (left, top, left + width, top + height)
            crop = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
        pixels = torch.from_numpy(np.array(crop)).permute(2, 0, 1).float()
        return (pixels - 118) / 58, self.classes.index(path.parent.name)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
dataset = Photographs("images")
loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
layers = [nn.Conv2d(3, 32, 8, 8), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 1000)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
batches = chain.from_iterable(repeat(loader))
next(batches)  # workers and threads start
since, seen = monotonic(), 0
for images, labels in batches:
    loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += len(images)
    if monotonic() - since > SECONDS:
        break
print(f"{seen / (monotonic() - since):,.0f} images/s, loss {loss.item():.2f}")
