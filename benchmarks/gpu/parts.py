"""The parts, in their order, and how long each may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """`seconds`: the limit in a whole run; `quick`: in a quick one. The module of the part's name has its `run`.

    `asks`: the beginnings of the names of figures with a goal, so that the page shows missing ones.
    """

    name: str
    title: str
    seconds: float
    quick: float
    asks: tuple[str, ...] = ()

    def time(self, *, quick: bool) -> float:
        """Seconds that it may take."""
        return self.quick if quick else self.seconds


DONE = "everything.made"  # a file that marks the data of all parts as complete
_STALLS = ("exposed stall, by iofast's clock", "exposed stall, beside a batch that stays")
_OTHERS = ("torchvision v2", "kornia")
PARTS = (
    Part("data", "What was worked on", 70, 30),
    Part("suite", "Tests that need a GPU", 95, 30, ("tests failed",)),
    Part(
        "transfer",
        "Transfer: a step of 5 ms, batches of 256",
        35,
        20,
        tuple(f"{source}: {stall}" for source in ("raw pixels", "packed photographs") for stall in _STALLS),
    ),
    Part(
        "decode",
        "Decoding: images a second by source, batch and way",
        75,
        20,
        (
            "packed: split, of the sum",
            "packed: split beside the CPU's kernel",
            "originals: split, of the sum",
            "originals, end to end",
        ),
    ),
    Part(
        "passes",
        "Fused passes: 256 images to 224 x 224 in bfloat16, channels last",
        50,
        20,
        (
            "geometry and normalisation, of the copy's rate",
            "colours, of the time of geometry",
            *(
                f"{what}: iofast beside {name}"
                for name in _OTHERS
                for what in ("geometry and normalisation", "colours")
            ),
        ),
    ),
    Part(
        "training", "Into a training loop", 100, 30, tuple(f"ResNet-50, FastLoader, packed: {each}" for each in _STALLS)
    ),
    Part("resident", "Images of 32 x 32 in the device's memory", 25, 20, ("the best",)),
    Part(
        "stress",
        "Order of streams: 200 batches, memory changing hands",
        110,  # the last one: most of it is for compute-sanitizer, and as much as the others have left
        20,
        (*(f"decode={way!r}: corrupt batches" for way in ("cpu", "gpu", "split")), "compute-sanitizer: errors"),
    ),
)
NAMES = tuple(part.name for part in PARTS)
MODULES = (*NAMES, "sanitized")
