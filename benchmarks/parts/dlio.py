"""The monitor's stall beside the accelerator utilisation of DLIO, the program of the MLPerf Storage benchmark.

    python -m benchmarks.parts.dlio --dlio VENV/bin/dlio_benchmark [--files 4800] [--only NAME]

DLIO emulates an accelerator: a step is a sleep of known length, and its report has `AU`, the share of time in which the
accelerator had a batch. So the stall is 1 - AU. It trains with its own loader, torch's DataLoader, which the monitor
sees from outside, with the same in `iofast.watch()`, and with a FastLoader; these two report from inside, and there
the stall must equal 1 - AU. How to install DLIO is in examples/dlio_loader.py; no packed file is needed here. Half a
minute a configuration, nine in all, and one to write 220 MB of pictures.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from benchmarks import measure
from tools import machine
from tools.machine import ROOT

ASKED = 0.03  # between the stall and 1 - AU
BATCH = 32
COPIES = 12
_OPTIONS = (
    "workload=resnet50_h100",
    "++workload.framework=pytorch",
    "++workload.reader.data_loader=pytorch",
    "++workload.dataset.format=jpeg",
    "++workload.dataset.num_samples_per_file=1",
    "++workload.dataset.record_length_bytes=1000000",  # pixels of a picture
    "++workload.dataset.record_length_bytes_stdev=0",
)


# the loader, its threads or workers, and the seconds of a step
CONFIGURATIONS = ("torch-1-0.1", "torch-2-0.05", "watched-1-0.05", "watched-1-0.1", "watched-1-0.3", "watched-2-0.05")
CONFIGURATIONS += ("iofast-1-0.05", "iofast-1-0.1", "iofast-2-0.05")
_FIRST = '{"schema"'  # the beginning of each object that the monitor prints
_CLASSES = {"watched": "dlio_loader.WatchedLoader", "iofast": "dlio_loader.IofastLoader"}


class Compared(NamedTuple):
    """A configuration's accelerator idle share by DLIO, and the monitor's bounds of the stall."""

    name: str
    idle: float
    low: float
    high: float
    tier: str

    @property
    def apart(self) -> float:
        """Distance of 1 - AU from the middle of the bounds."""
        return abs((self.low + self.high) / 2 - self.idle)


def generate(dlio: str, folder: Path, files: int) -> None:
    """Have DLIO write its pictures to `folder`/data, one for `COPIES` files: the others are links to it.

    `AU` counts the start of the epoch, the stall does not, so there must be many steps.
    """
    options = ["++workload.workflow.generate_data=True", "++workload.workflow.train=False"]
    _dlio([dlio], folder, max(1, files // COPIES), *options)
    made = sorted((folder / "data" / "resnet50" / "train").iterdir())
    for number in range(files - len(made)):
        picture = made[number % len(made)]
        os.link(picture, picture.with_name(f"link_{number:06}{picture.suffix}"))


def compared(dlio: str, folder: Path, files: int, name: str) -> Compared:
    """Run DLIO in a configuration under the monitor. Raises RuntimeError if one of them fails."""
    own, (loader, threads, step_s) = folder / name, name.split("-")
    options = [
        f"hydra.run.dir={own}",
        "++workload.workflow.generate_data=False",
        "++workload.train.epochs=1",
        f"++workload.train.computation_time={step_s}",
        f"++workload.reader.batch_size={BATCH}",
        f"++workload.reader.read_threads={threads}",
    ]
    if loader in _CLASSES:
        options += [f"++workload.reader.data_loader_sampler={'iterative' if loader == 'iofast' else 'index'}"]
        options += [f"++workload.reader.data_loader_classname={_CLASSES[loader]}"]
    printed = _dlio([sys.executable, "-m", "iofast", "monitor", "--json", "--", dlio], folder, files, *options)
    # DLIO writes to the same stream, and may go on in the line of an object
    texts = (line[line.index(_FIRST) :] for line in printed.splitlines() if _FIRST in line)
    seen = [json.JSONDecoder().raw_decode(text)[0] for text in texts]
    judged = [one["stall"] for one in seen if one["stall"] is not None]
    if not judged:
        raise RuntimeError(f"the monitor saw no training in {name}: {printed[-2000:]}")
    idle = 1 - json.loads((own / "summary.json").read_text())["metric"]["train_au_mean_percentage"] / 100
    return Compared(name, idle, judged[-1]["low"], judged[-1]["high"], judged[-1]["tier"])


def _dlio(command: Sequence[str], folder: Path, files: int, *options: str) -> str:
    """What DLIO, or the monitor that runs it, prints to the standard error."""
    paths = [str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    quiet = {"DFTRACER_ENABLE": "0", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    environment = os.environ | quiet | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    given = [*command, *_OPTIONS, f"++workload.dataset.num_files_train={files}", *options]
    run = subprocess.run(given, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"status {run.returncode} of {command[0]}: {(run.stderr + run.stdout)[-3000:]}")
    return run.stderr


def page(found: Sequence[Compared]) -> str:
    """A row for each configuration."""
    inside = [one for one in found if one.tier == "inside"]
    near = [one for one in inside if one.apart <= ASKED]
    held = sum(one.low - ASKED <= one.idle <= one.high + ASKED for one in found)
    rows = [
        (*one.name.split("-"), f"{one.idle:.1%}", f"{one.low:.1%} – {one.high:.1%}", one.tier, f"{100 * one.apart:.1f}")
        for one in found
    ]
    header = ("loader", "threads", "step, s", "1 - AU", "the monitor's stall", "tier", "apart, points")
    return f"""# The monitor's stall and DLIO's accelerator utilisation

DLIO 2.0 (MLPerf Storage), ResNet-50's workload with JPEGs, batches of {BATCH}. "apart" is the distance of 1 - AU from
the middle of the bounds.

- Measured inside: within {100 * ASKED:.0f} points {len(near)} of {len(inside)}
- Bounds that hold 1 - AU ({100 * ASKED:.0f} points aside): {held} of {len(found)}

{measure.table(header, rows)}
"""


def main() -> None:
    parser = measure.parser(__doc__, photos=False)
    parser.add_argument("--dlio", default="dlio_benchmark", help="DLIO's program (default: %(default)s on the PATH)")
    parser.add_argument("--files", type=int, default=4800, help="pictures: a step takes 32 (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="such as torch-1-0.1; repeatable")
    given = parser.parse_args()
    dlio = str(Path(given.dlio).resolve()) if os.sep in given.dlio else given.dlio
    with tempfile.TemporaryDirectory(prefix="iofast-dlio-") as folder:
        generate(dlio, Path(folder), given.files)
        chosen = [name for name in CONFIGURATIONS if not given.only or name in given.only]
        bar = tqdm(chosen, unit=" runs", disable=not sys.stderr.isatty())
        found = [compared(dlio, Path(folder), given.files, name) for name in bar]
    command = "- Command: `python -m benchmarks.parts.dlio`\n"
    measure.write("dlio", f"{page(found)}\n{machine.describe()}\n{command}", given.output)


if __name__ == "__main__":
    main()
