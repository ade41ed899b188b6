"""What the contenders have to do: a table of the page each."""

from typing import NamedTuple


class Case(NamedTuple):
    """A table of the page.

    wanted      `Options.case` of the scripts
    source      prepared (256 pixels, quality 90) or originals
    workers     threads or processes; None: as many as the command line says
    is_trained  a small network trains on the batches, on the same cores
    is_cold     everything is evicted from the page cache before each epoch, and the disk is slowed down
    short       its name in the README's table; those without one are not in it
    """

    title: str
    wanted: str
    source: str = "prepared"
    workers: int | None = None
    is_trained: bool = False
    is_cold: bool = False
    short: str = ""


CASES = {
    "crop": Case("Random crops: RandomResizedCrop(224) and a flip, uint8", "crop", short="random crops"),
    "one": Case("The same with one worker", "crop", workers=1),
    "float32": Case("The same, normalised to float32", "float32", short="random crops, float32"),
    "bfloat16": Case("The same, normalised to bfloat16", "bfloat16"),
    "centre": Case("Evaluation: Resize(256) and CenterCrop(224), uint8", "centre", short="centre crops"),
    "recipe": Case(
        "A recipe: random crops, ColorJitter, RandAugment, float32", "recipe", short="ColorJitter and RandAugment"
    ),
    "originals": Case(
        "Random crops of the original photographs in a folder", "crop", "originals", short="crops of original files"
    ),
    "training": Case(
        "A small network trained on float32 crops, on the same cores",
        "float32",
        is_trained=True,
        short="while a small network trains",
    ),
    "cold": Case("Random crops from a disk of 50 MB/s, nothing in the page cache", "crop", is_cold=True),
    "packing": Case(
        "Packing the original photographs: a short side of 256 pixels, quality 90",
        "packing",
        "originals",
        short="packing",
    ),
}
