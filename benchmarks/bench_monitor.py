"""Does `iofast monitor` judge rightly, and do its predictions come true? Small programs with known bottlenecks.

    python -m benchmarks.bench_monitor [--suite final|change-tune|change-final] [--only NAME] [--outside] [--resume]

Each program of benchmarks/verdicts/programs.py runs twice: watched by a monitor that knows only its pid, and with
`iofast.watch` inside (not with --outside). The device is simulated by a process with a timed queue, which publishes its
busy time through a stand-in NVML. The true stall follows from the recorded timelines. The failures of the first run
have been fixed since, so the suite guards against regressions and is no blind test.

A program of the suites change-… runs once as it is, watched from outside; `iofast monitor`'s model predicts rates from
what it saw. Then the program really runs with more workers, a device or a storage twice as fast, a second core, its
pictures packed by `iofast pack --resize 256`, or a FastLoader with the same transforms, and its rate, by its own
timeline, is compared. The model was made with "change-tune"; "change-final" has other sizes and kinds, and nobody looks
at it before. 40 minutes each with --seconds 15.

Programs of ZeroMQ and gRPC need pyzmq and grpcio. A run that other programs disturbed is repeated up to --repeats
times. With --resume earlier runs are only judged again.
"""

import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks import measure
from benchmarks.verdicts import predictions, score
from benchmarks.verdicts.program_runs import Place, Run
from benchmarks.verdicts.programs import SUITES
from tests.nvml import build
from tools import machine

PAGES = {"final": "verdict", "change-tune": "what-if-tune", "change-final": "what-if"}


def part(scored: Sequence[score.Scored], *, inside: bool) -> str:
    """The results of the runs inside, or of those outside."""
    rows = [(*figures, "yes" if met else "**no**") for *figures, met in score.asked(scored, inside=inside)]
    return f"""## {"Inside" if inside else "Outside"}

{measure.table(("", "asked", "found", "met"), rows)}

{score.confusion(scored)}

{score.causes(scored)}

{score.programs(scored)}
"""


def page(found: Sequence[Run], seconds: float) -> str:
    """Figures, confusion matrices, and a line for each program."""
    ran = [run for run in found if run.seen is not None]
    sides = {inside: [score.score(run) for run in ran if run.inside is inside] for inside in (False, True)}
    parts = [part(scored, inside=inside) for inside, scored in sides.items() if scored]
    loud = max((run.others for run in ran), default=0.0)
    skipped = sorted({f"- {run.program.name} did not run: {run.skipped}" for run in found if run.skipped})
    used = statistics.median(run.seen.cpu_s / ((run.seen.until - run.seen.since) / 1e9) for run in ran if run.seen)
    return f"""# Does the monitor judge rightly?

Suite "final": {len({run.program.name for run in ran})} programs, each watched for {seconds:.0f} s. A stall is the
share of training time in which the device was idle while training was in next(), from the recorded timelines. They also
say what is right: input-bound from 10%, compute-bound below 5%, either between, whatever a program was built for: a
machine that is slower for a minute makes another program of it. Launches, synchronisations and waits for anything but
a batch are as built; of the latter the right verdict is an abstention.

{chr(10).join([*parts, *skipped])}
- The monitor used {used:.1%} of one core in the median run (its child processes apart); other programs used
  {statistics.median(run.others for run in ran):.0%} of the processors in the median run and {loud:.0%} in the worst
"""


def main() -> None:
    parser = measure.parser(__doc__, photos=False)
    parser.add_argument("--suite", choices=SUITES, default="final")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this program; may be repeated")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of each run (default: %(default)s)")
    parser.add_argument("--outside", action="store_true", help="without iofast.watch: half of the time")
    parser.add_argument("--resume", action="store_true", help="keep the runs that are there, and judge them again")
    text = "times that a run is repeated while other programs use over a tenth of the processors (default: %(default)s)"
    parser.add_argument("--repeats", type=int, default=2, help=text)
    default = Path(tempfile.gettempdir()) / "iofast-verdicts"
    parser.add_argument("--folder", type=Path, default=default, help="where runs are kept (default: %(default)s)")
    given = parser.parse_args()
    folder: Path = given.folder.resolve()
    if not given.resume:
        shutil.rmtree(folder / "runs", ignore_errors=True)
    (folder / "nvml").mkdir(parents=True, exist_ok=True)
    place = Place(folder, build(folder / "nvml"), given.seconds, given.repeats)
    chosen = [program for program in SUITES[given.suite] if not given.only or program.name in given.only]
    bar = tqdm(chosen, unit=" programs", disable=not sys.stderr.isatty())
    if given.suite == "final":
        sides = (False,) if given.outside else (False, True)
        found = page([place.run(program, inside=side) for program in bar for side in sides], given.seconds)
    else:
        found = predictions.page(given.suite, place, bar)
    command = f"python -m benchmarks.bench_monitor --suite {given.suite}{' --outside' * given.outside}"
    measure.write(PAGES[given.suite], f"{found}{machine.describe()}\n- Command: `{command}`\n", given.output)


if __name__ == "__main__":
    main()
