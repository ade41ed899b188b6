"""Does `iofast monitor` judge rightly? A labelled suite of small training programs with known bottlenecks and stalls.

    python -m benchmarks.bench_monitor [--suite tune|final] [--only NAME] [--seconds 30] [--outside] [--resume]

Each program of benchmarks/verdicts/programs.py runs twice: watched by a monitor that knows only its pid, and with
`iofast.watch` inside (not with --outside). The device is simulated by a process with a timed queue, which publishes its
busy time through a stand-in NVML. The true stall follows from the recorded timelines.

Thresholds were tuned on the suite "tune". "final", with other sizes, seeds and kinds, was scored once at first; its
failures have been fixed since, so it guards against regressions and is no longer a blind test. Programs of ZeroMQ and
gRPC need pyzmq and grpcio. A run that other programs disturbed is repeated up to --repeats times. With --resume earlier
runs are only judged again.
"""

import statistics
import sys
from collections.abc import Sequence

from tqdm import tqdm

from benchmarks import measure
from benchmarks.verdicts import score
from benchmarks.verdicts.program_runs import Place, Run, add_options, place_of
from benchmarks.verdicts.programs import SUITES
from tools import machine


def runs(place: Place, only: Sequence[str], sides: Sequence[bool] = (False, True)) -> list[Run]:
    """Run all programs of the suite on each of `sides` in turn (True: inside)."""
    chosen = [program for program in SUITES[place.suite] if not only or program.name in only]
    found = []
    with tqdm(total=len(sides) * len(chosen), unit=" runs", disable=not sys.stderr.isatty()) as bar:
        for program in chosen:
            for inside in sides:
                bar.set_description(program.name)
                found.append(place.run(program, inside=inside))
                bar.update()
    return found


def part(scored: Sequence[score.Scored], *, inside: bool) -> str:
    """The results of the runs inside, or of those outside."""
    rows = [(*figures, "yes" if met else "**no**") for *figures, met in score.asked(scored, inside=inside)]
    return f"""## {"Inside" if inside else "Outside"}

{measure.table(("", "asked", "found", "met"), rows)}

{score.confusion(scored)}

{score.causes(scored)}

{score.programs(scored)}
"""


def page(suite: str, found: Sequence[Run], seconds: float) -> str:
    """Figures, confusion matrices, and a line for each program."""
    ran = [run for run in found if run.seen is not None]
    sides = {inside: [score.score(run) for run in ran if run.inside is inside] for inside in (False, True)}
    parts = [part(scored, inside=inside) for inside, scored in sides.items() if scored]
    loud = max((run.others for run in ran), default=0.0)
    skipped = sorted({f"- {run.program.name} did not run: {run.skipped}" for run in found if run.skipped})
    outside = "" if sides[True] else " --outside"
    used = statistics.median(run.seen.cpu_s / ((run.seen.until - run.seen.since) / 1e9) for run in ran if run.seen)
    return f"""# Does the monitor judge rightly?

Suite "{suite}": {len({run.program.name for run in ran})} programs, each watched for {seconds:.0f} s. A stall is the
share of training time in which the device was idle while training was in next(), from the recorded timelines. They also
say what is right: input-bound from 10%, compute-bound below 5%, either between, whatever a program was built for: a
machine that is slower for a minute makes another program of it. Launches, synchronisations and waits for anything but
a batch are as built; of the latter the right verdict is an abstention.

{chr(10).join(parts)}
{machine.describe()}
- The monitor used {used:.1%} of one core in the median run (its child processes apart); other programs used
  {statistics.median(run.others for run in ran):.0%} of the processors in the median run and {loud:.0%} in the worst
{chr(10).join([*skipped, f"- Command: `python -m benchmarks.bench_monitor --suite {suite}{outside}`"])}
"""


def main() -> None:
    parser = measure.parser(__doc__, photos=False, seconds=30.0, outside=False, resume=False, repeats=2)
    add_options(parser, "iofast-verdicts")
    arguments = parser.parse_args()
    place = place_of(arguments, arguments.suite)
    found = runs(place, arguments.only, (False,) if arguments.outside else (False, True))
    name = "verdict" if arguments.suite == "final" else f"verdict-{arguments.suite}"
    measure.write(name, page(arguments.suite, found, arguments.seconds), arguments.output)


if __name__ == "__main__":
    main()
