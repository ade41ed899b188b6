"""What augmentation costs: recipes through FastLoader.

Whole epochs from the page cache in two threads. Then ColorJitter by other libraries, in functions that the loader
calls. Whole recipes of others are in `benchmarks.rivals`.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import measure, photographs
from benchmarks.bench_load import BATCH, CROP, WORKERS, fast, rate
from benchmarks.peers import vision
from iofast import FastDataset, FastLoader
from iofast import transforms as T

EPOCH, THEIR_EPOCH = 3_000, 600  # images
END = T.Normalize.imagenet()
THREE = T.RandomChoice([T.Grayscale(), T.Solarize(128 / 255), T.GaussianBlur(17, (0.1, 2.0))])
PLAIN = "plain, uint8"
JITTER = (0.4, 0.4, 0.4, 0.1)
OURS = "T.ColorJitter in the transform"
RECIPES: dict[str, tuple[Any, torch.dtype]] = {  # by name: what follows the crop, and the dtype
    PLAIN: ([], torch.uint8),
    "normalised, float32": ([END], torch.float32),
    "normalised, bfloat16": ([END], torch.bfloat16),
    "normalised, float16": ([END], torch.float16),
    f"ColorJitter{JITTER}, float32": ([T.ColorJitter(*JITTER), END], torch.float32),
    "rand-m9-mstd0.5-inc1 and RandomErasing, float32": (
        [T.timm_policy("rand-m9-mstd0.5-inc1"), END, T.RandomErasing(0.25, value="random")],
        torch.float32,
    ),
    "TrivialAugmentWide, float32": ([T.TrivialAugmentWide(interpolation="bilinear"), END], torch.float32),
    "3-Augment, float32": ([THREE, END], torch.float32),
    "AutoAugment, float32": ([T.AutoAugment(), END], torch.float32),
    "DINO's 2 + 8 crops, float32": (T.dino(), torch.float32),
}


def recipes(bench: measure.Bench) -> None:
    """The part `recipes`."""
    with bench.workplace() as (folder, photos):
        copies = photographs.link(photos, folder / "copies", bench.size(EPOCH, 128))
        container = photographs.pack(copies, folder / "packed.lmdb")
        contenders = {name: ours(container, after, dtype) for name, (after, dtype) in RECIPES.items()}
        figures = measure.in_turn(contenders, bench.rounds(5))
        ways = measure.in_turn(dict(functions(container)), bench.rounds(5))
    rows = [[name, measure.spread(own), f"{measure.ratio(figures, name, PLAIN):.2f}"] for name, own in figures.items()]
    jitters = [[name, measure.spread(own), f"{measure.ratio(ways, name, OURS):.2f}"] for name, own in ways.items()]
    bench.publish(
        f"""# What augmentation costs

RandomResizedCrop(224), RandomHorizontalFlip, then what is named, in batches of {BATCH}; {len(figures[PLAIN])} rounds in
turn, median (least – most). {bench.kind}, packed at a short side of 256 pixels. FastLoader has {WORKERS} threads.

{measure.table(("images/s", "FastLoader", "of plain"), rows)}

The same operation by other libraries, in functions that the loader calls:

{measure.table((f"ColorJitter{JITTER}", "images/s", "of ours"), jitters)}
""",
        figures,
    )


def ours(container: Path, after: Any, dtype: torch.dtype) -> Callable[[], float]:
    """FastLoader with one recipe."""
    if not isinstance(after, T.Views):
        return fast(container, [*CROP, *after], dtype=dtype)
    return few(container, transform=after, dtype=dtype)


def few(container: Path, **options: Any) -> Callable[[], float]:
    """FastLoader with slow options, over the first images."""
    indices = np.arange(min(THEIR_EPOCH, len(FastDataset(container))))
    dataset = FastDataset(container, indices=indices)
    return rate(FastLoader(dataset, BATCH // 4, shuffle=True, num_workers=WORKERS, **options))


def functions(container: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """ColorJitter of ours, and of the libraries that are installed, in the loader's functions."""
    yield OURS, fast(container, [*CROP, T.ColorJitter(*JITTER)], dtype=torch.float32)
    own: dict[str, Any] = {"transform": CROP, "dtype": torch.float32}
    if find_spec("albumentations"):
        library: Any = import_module("albumentations")
        jitter = library.ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1), p=1)

        def jittered(sample: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
            image = np.ascontiguousarray(sample["image"].permute(1, 2, 0).numpy())
            return sample | {"image": torch.from_numpy(jitter(image=image)["image"]).permute(2, 0, 1)}

        yield "albumentations in map_sample", few(container, map_sample=jittered, **own)
    if (v2 := vision.v2()) is not None:
        theirs = v2.ColorJitter(*JITTER)
        mapped = lambda sample, _: sample | {"image": theirs(sample["image"])}  # noqa: E731
        yield "torchvision v2 in map_sample", few(container, map_sample=mapped, **own)
    if find_spec("kornia"):
        kornia: Any = import_module("kornia")
        batchwise = kornia.augmentation.ColorJitter(*JITTER, p=1.0)
        mapped = lambda batch: (batchwise(batch[0]), batch[1])  # noqa: E731
        yield "kornia in map_batch", few(container, map_batch=mapped, **own)
