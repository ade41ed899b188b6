"""A script with ImageFolder, a DataLoader and torchvision's v2, with `iofast run` and without, in turn.

    python -m benchmarks.bench_run FOLDER [--rounds 3] [--epochs 5]

FOLDER has a folder per class. It needs torchvision. Rates leave out the first epoch, whose batches must be equal bit by
bit; medians of the rounds go to benchmarks/results/run.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import measure
from tools import machine

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    rows = ["| images | plain, images/s | `iofast run` | times | first epoch |", "| --- | ---: | ---: | ---: | --- |"]
    for folder in args.folder:
        script = [sys.executable, "-c", SCRIPT, str(folder), str(args.epochs)]
        pairs = []
        for _ in range(args.rounds):
            pairs.append((rate(script), rate([sys.executable, "-m", "iofast", "run", "--quiet", "--", *script])))
            print(folder, *(f"{found:.0f}" for _, found in pairs[-1]), flush=True)
        plain, ours = (statistics.median(pair[side][1] for pair in pairs) for side in (0, 1))
        times = statistics.median(own[1] / other[1] for other, own in pairs)
        equal = "equal" if all(own[0] == other[0] for other, own in pairs) else "DIFFERENT"
        rows.append(f"| {folder.name} | {plain:,.0f} | {ours:,.0f} | {times:.2f} | {equal} |")
    page = ["# Unedited scripts with `iofast run`", "", machine.describe(), "", *rows, ""]
    measure.write("run", "\n".join(page), None)


if __name__ == "__main__":
    main()
