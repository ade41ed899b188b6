"""A script with ImageFolder, a DataLoader and torchvision's v2, with `iofast run` and without, in turn.

On the photographs and on their packed files. Rates leave out the first epoch, whose batches must be equal bit by bit.
It needs torchvision.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys

from benchmarks import measure, photographs
from benchmarks.bench_load import plain

SCRIPT = """
import hashlib, sys, time, torch
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.transforms import v2

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    scale, normalize = v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    augment = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor(), scale, normalize])
    data = datasets.ImageFolder(sys.argv[1], augment)
    loader = DataLoader(data, 64, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    digest, count = hashlib.sha256(), 0
    for epoch in range(int(sys.argv[2])):
        if epoch == 1:
            begun = time.perf_counter()
        for images, labels in loader:
            if epoch == 0:
                digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
            else:
                count += len(labels)
    print("RATE", digest.hexdigest(), count / (time.perf_counter() - begun))
"""


def rate(command: list[str]) -> tuple[str, float]:
    """Digest of the first epoch, and images a second of the others."""
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, digest, found = next(line for line in said.splitlines() if line.startswith("RATE")).split()
    return digest, float(found)


def run(bench: measure.Bench) -> None:
    """The part `run`."""
    if importlib.util.find_spec("torchvision") is None:
        print("run: left out, for want of torchvision", file=sys.stderr)
        return
    rows, rounds, epochs = [], bench.rounds(3), bench.size(5, 2)
    with bench.workplace() as (folder, photos):
        originals = photographs.link(photos, folder / "originals", bench.size(2000, 128))
        plain(photographs.pack(originals, folder / "packed.lmdb"), folder)
        for name, images in (("originals", originals), ("short side 256", folder / "files")):
            script = [sys.executable, "-c", SCRIPT, str(images), str(epochs)]
            under = [sys.executable, "-m", "iofast", "run", "--quiet", "--", *script]
            pairs = [(rate(script), rate(under)) for _ in range(rounds)]
            alone, ours = (statistics.median(pair[side][1] for pair in pairs) for side in (0, 1))
            times = statistics.median(own[1] / other[1] for other, own in pairs)
            equal = "equal" if all(own[0] == other[0] for other, own in pairs) else "DIFFERENT"
            rows.append([name, f"{alone:,.0f}", f"{ours:,.0f}", f"{times:.2f}", equal])
    header = ("images", "plain, images/s", "`iofast run`", "times", "first epoch")
    bench.publish(f"# Unedited scripts with `iofast run`\n\n{bench.kind}.\n\n{measure.table(header, rows)}\n")
