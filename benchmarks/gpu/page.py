"""The parts in their order, and the page of a GPU: goals and results, every figure, and what could not be measured."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from benchmarks import measure
from benchmarks.gpu.job import Outcome, written
from tools import machine


class Part(NamedTuple):
    """`seconds`: the limit in a whole run; `quick`: in a quick one. The module of the part's name has its `run`."""

    name: str
    title: str
    seconds: float
    quick: float

    def time(self, *, quick: bool) -> float:
        """Seconds that it may take."""
        return self.quick if quick else self.seconds


PARTS = (
    Part("data", "What was worked on", 40, 30),
    Part("pixels", "Pixels: the device's beside the CPU kernel's", 45, 30),
    Part("finishing", "The device alone: decoding, and steps of decoded images", 35, 20),
    Part("decode", "Decoding: images a second by source, batch and way", 90, 20),
    Part("transfer", "Transfer: a step of 5 ms, batches of 256", 50, 20),
    Part("training", "Into a training loop", 90, 30),
    Part("resident", "Images of 32 x 32 in the device's memory", 40, 20),
    # last: compute-sanitizer takes what the others have left; 27 s in all were enough on an H100
    Part("stress", "Order of streams: 200 batches, memory changing hands", 100, 20),
)
PACKAGES = ("torchvision", "cuda-bindings")
MET = {True: "yes", False: "**no**"}


def page(outcomes: Mapping[str, Outcome], device: torch.device, command: str, *, quick: bool) -> str:
    """The result as markdown; parts that were not begun are left out."""
    name = device_name(device)
    asks = device.type == "cuda" and not quick
    sections = [part_section(part, outcomes[part.name], quick=quick) for part in PARTS if part.name in outcomes]
    return f"""# On a GPU: {name}

Measured in one run of `benchmarks/bench_gpu.py`, each part in a process of its own. A stall is the share of a loop's
time in which the device waited for a batch: by iofast's clock (CUDA events), and as the time that the same steps take
less with one batch that stays on the device.

## Asked and found

{asked(outcomes) if asks else TRIAL}
{"".join(sections)}
## What could not be measured

{lacking(outcomes)}

## Machine

- Device: {"; ".join((name, *about(device)))}
{machine.describe()}
- Command: `{command}`
"""


TRIAL = "A trial, which shows that the program works: nothing is asked of its figures, and they mean nothing."


def asked(outcomes: Mapping[str, Outcome]) -> str:
    """The figures with a goal."""
    figures = [each for part in PARTS for each in outcomes.get(part.name, Outcome()).figures if each.met is not None]
    rows = [[each.name, written(each.value, each.unit), each.asked, MET[each.met]] for each in figures]
    return measure.table(("", "found", "asked", "met"), rows)


def part_section(part: Part, outcome: Outcome, *, quick: bool) -> str:
    """All figures of a part."""
    rows = [[figure.name, written(figure.value, figure.unit)] for figure in outcome.figures]
    figures = measure.table(("", "found"), rows) if rows else "No figures."
    limit = part.time(quick=quick)
    return f"\n## {part.title}\n\n{figures}\n\n{outcome.seconds:.0f} of {limit:.0f} s. {outcome.ended}".rstrip() + "\n"


def lacking(outcomes: Mapping[str, Outcome]) -> str:
    """What could not be measured, and why."""
    lines = []
    for name, outcome in outcomes.items():
        lines += [f"- {name}: {lack.what}: {lack.why}" for lack in outcome.lacks]
        lines += [f"- {name}: {outcome.ended}"] if outcome.ended else []
    return "\n".join(lines) or "Everything was."


def device_name(device: torch.device) -> str:
    """The device's product name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def driver() -> str:
    """The driver's version, by nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said[0] if said else "unknown"


def slug(name: str) -> str:
    """A file's name: lower case, words with hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def about(device: torch.device) -> Iterator[str]:
    """The device and the versions of what works with it."""
    if device.type == "cuda":
        its = torch.cuda.get_device_properties(device)
        yield f"{its.total_memory / (1 << 30):.0f} GiB, {its.multi_processor_count} multiprocessors"
        yield f"compute capability {its.major}.{its.minor}, CUDA {torch.version.cuda}, driver {driver()}"
    found = [f"{package} {version}" for package in PACKAGES if (version := machine.version(package))]
    yield ", ".join(found) or "neither torchvision nor cuda-bindings"
