"""The parts, in their order, and how long each may take."""

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
ASKS = {
    "pixels": ("crops: images that differ", "crops, cache='device': images that differ", "steps: images that differ"),
    "finishing": ("decoding and finishing alone",),
    "decode": ("cache='device', batches of", "from the page cache, 2 cores", "originals, end to end"),
    "transfer": tuple(f"{source}: {stall}" for source in ("raw pixels", "packed photographs") for stall in _STALLS),
    "training": tuple(f"ResNet-50, FastLoader, packed: {each}" for each in _STALLS),
    "resident": ("the best",),
    "stress": (
        *(f"decode={way!r}: corrupt batches" for way in ("cpu", "gpu")),
        "compute-sanitizer: errors",
    ),
}
PARTS = tuple(
    Part(name, title, seconds, quick, ASKS.get(name, ()))
    for name, title, seconds, quick in (
        ("data", "What was worked on", 40, 30),
        ("pixels", "Pixels: the device's beside the CPU kernel's", 45, 30),
        ("finishing", "The device alone: decoding, and steps of decoded images", 35, 20),
        ("decode", "Decoding: images a second by source, batch and way", 90, 20),
        ("transfer", "Transfer: a step of 5 ms, batches of 256", 50, 20),
        ("training", "Into a training loop", 90, 30),
        ("resident", "Images of 32 x 32 in the device's memory", 40, 20),
        # last: compute-sanitizer takes what the others have left; 27 s in all were enough on an H100
        ("stress", "Order of streams: 200 batches, memory changing hands", 100, 20),
    )
)
NAMES = tuple(part.name for part in PARTS)
