"""What a GPU gets, and how long it waits: one command for a machine with a GPU, under eight minutes.

    python -m benchmarks.bench_gpu [--photos FOLDER] [--only PART ...] [--quick] [--device cuda] [--output PAGE.md]

    data       photographs are made (or taken from FOLDER) and packed, as JPEGs and as pixels
    pixels     whether the device's pixels are the CPU kernel's, bit for bit
    finishing  the device's time for a batch: decoding, and steps of decoded images
    decode     images a second by the CPU's kernel, by the GPU, and by nvImageCodec and torchvision alone
    transfer   a step of 5 ms with batches of 256: the exposed stall
    training   images a second into nothing, ResNet-18 and ResNet-50, beside ImageFolder and DataLoader
    resident   images of CIFAR's size, augmented in the device's memory
    stress     corrupt batches of 200, with memory changing hands; compute-sanitizer

PyTorch, cuda-bindings and iofast's own dependencies are required; torchvision and compute-sanitizer are optional. Each
part is a process with a time limit: if it fails, hangs or breaks the device, the others still run. The page is written
after each part, with what could not be measured and why. `tools/gpu_session.sh` installs packages that the machine
lacks.
"""

import argparse
import contextlib
import io
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.gpu.job import DONE, Lack, Outcome, read
from benchmarks.gpu.page import PARTS, Part, device_name, page, slug
from iofast import kernel

SECONDS = 470.0  # of all parts together
NAMES = tuple(part.name for part in PARTS)
TAIL, SHOWN = 400, 4000  # characters at the end of a part's output: on the page if it died, on the terminal


def main() -> int:
    parser = measure.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="these parts, and data for them")
    parser.add_argument("--quick", action="store_true", help="a trial of the program: small, and nothing is asked")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"), help="cpu: for a trial")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of all parts together (default {SECONDS:.0f})")
    parser.add_argument("--data", type=Path, help="keep what is made there, and take it from there the next time")
    asked = parser.parse_args()
    if asked.device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: --device cpu --quick tries the program out", file=sys.stderr)
        return 0  # `make bench` continues, as with other benchmarks that lack something
    command = shlex.join(["python", "-m", "benchmarks.bench_gpu", *options_of(asked)])
    trial = asked.quick or asked.device.type != "cuda"  # its figures mean nothing and are not kept
    folder = Path(tempfile.gettempdir()) if trial else measure.RESULTS
    output = asked.output or folder / f"{slug(device_name(asked.device))}.md"
    options = ["--device", str(asked.device), *(["--quick"] if asked.quick else [])]
    options += ["--photos", str(asked.photos.resolve())] if asked.photos else []
    outcomes: dict[str, Outcome] = {}
    if kernel.backend != "native":  # first on the page: the figures depend on it
        why = "it could not be built or loaded here, and most parts need it"
        outcomes["kernel"] = Outcome(lacks=(Lack("iofast's native kernel", why),))
    wanted = {*asked.only, "data"}
    deadline = time.monotonic() + asked.seconds
    if asked.data:
        asked.data.mkdir(parents=True, exist_ok=True)
    kept = contextlib.nullcontext(str(asked.data.resolve())) if asked.data else None
    with kept or tempfile.TemporaryDirectory(prefix="iofast-gpu-") as place:
        for part in (part for part in PARTS if part.name in wanted):
            seconds = min(part.time(quick=asked.quick), deadline - time.monotonic())
            outcomes[part.name] = run(part, Path(place), seconds, options)
            with contextlib.redirect_stdout(io.StringIO()):  # the page so far; at the end it is printed
                measure.write("", page(outcomes, asked.device, command, quick=asked.quick), output)
    print(output.read_text())
    return 0


def options_of(asked: argparse.Namespace) -> list[str]:
    """The command's options for the page, without this machine's folders."""
    parts = [] if asked.only == NAMES else ["--only", *asked.only]
    quick = ["--quick"] if asked.quick else []
    device = [] if str(asked.device) == "cuda" else ["--device", str(asked.device)]
    return [*parts, *quick, *device, *([] if asked.seconds == SECONDS else ["--seconds", f"{asked.seconds:g}"])]


def run(part: Part, folder: Path, seconds: float, options: list[str]) -> Outcome:
    """Run a part in a process of its own; its records count, however it ends."""
    if seconds <= 1:
        return Outcome(ended="Not begun: the time of all parts was used up.")
    log = folder / f"{part.name}.jsonl"
    if part.name == "data" and (folder / DONE).exists():
        return Outcome(*read(log))
    log.unlink(missing_ok=True)
    print(f"{part.name}: {part.title}, up to {seconds:.0f} s", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "benchmarks.gpu.job", part.name, "--data", str(folder), "--log", str(log)]
    begun = time.monotonic()
    with (folder / f"{part.name}.txt").open("w+") as text:
        ended = waited([*command, "--seconds", f"{0.9 * seconds:.1f}", *options], text, seconds)
        text.seek(0)
        said = text.read()
    figures, lacks = read(log)
    if ended or lacks:
        print(said[-SHOWN:], file=sys.stderr, flush=True)
    if ended and not lacks:
        last = " / ".join(said[-TAIL:].split("\n")).replace("|", "/").strip(" /")
        lacks = (Lack("what it said last", last),)
    return Outcome(figures, lacks, time.monotonic() - begun, ended)


def waited(command: list[str], output: io.TextIOWrapper, seconds: float) -> str:
    """Run it with its output in `output`; return how it ended if it failed. Its own processes end with it."""
    root = Path(__file__).resolve().parent.parent
    process = subprocess.Popen(command, stdout=output, stderr=output, cwd=root, start_new_session=True)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"Stopped after {seconds:.0f} s: it was not through."
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "" if status == 0 else f"It ended with status {status}."


if __name__ == "__main__":
    sys.exit(main())
