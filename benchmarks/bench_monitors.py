"""Does another tool see what `iofast monitor` sees? The same run of the same program, judged by both.

    pip install traceml-ai==0.5.0 gpuprof==0.7.1
    python -m benchmarks.bench_monitors [--tool traceml|gpuprof] [--only NAME] [--seconds 30] [--resume]

The programs of the suite "tune" (benchmarks/verdicts) and ten that compute on the processor run under each tool, in
the loop that every framework has, while our monitor watches the same process from outside. All answer one question:
does this training wait for its data? The truth follows from recorded timelines. With --resume earlier runs are only
judged again, and programs that never ran are left out.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks import measure
from benchmarks.monitors.side import CLEAR, Pair, Side
from benchmarks.monitors.tools import INSIDE
from benchmarks.monitors.workloads import LOOKING, PROGRAMS, RUNNING_AHEAD, unseen
from benchmarks.verdicts.program_runs import build_nvml
from tools import machine

NAMES = {"traceml": "traceml-ai", "gpuprof": "gpuprof"}
MARKS = {RUNNING_AHEAD: " ¹", LOOKING: " ²"}


def judged(pairs: Sequence[Pair]) -> list[Pair]:
    """Those that came to an end."""
    return [pair for pair in pairs if pair.theirs is not None]


def summary(pairs: Sequence[Pair]) -> str:
    """Right answers, starved runs that were not seen and fed ones that were called starved, of the same runs."""
    rows = []
    for tool, name in NAMES.items():
        mine = [pair for pair in judged(pairs) if pair.tool == tool and pair.counted]
        starved = sum(bool(pair.starved) for pair in mine)
        for who, label in enumerate((f"iofast, beside {name}", name)):
            said = [(pair.starved, pair.answers[who]) for pair in mine]
            rows.append(
                (
                    label,
                    f"{sum(answer == truth for truth, answer in said)} of {len(mine)}",
                    f"{sum(bool(truth) and answer is False for truth, answer in said)} of {starved}",
                    f"{sum(not truth and answer is True for truth, answer in said)} of {len(mine) - starved}",
                    f"{sum(answer is None for _, answer in said)}",
                )
            )
    return measure.table(("", "right", "starved, called fed", "fed, called starved", "abstained"), rows)


def programs(pairs: Sequence[Pair], tool: str) -> str:
    """A line for each program that ran under `tool`."""
    rows = []
    for pair in judged(pairs):
        if pair.tool != tool or pair.ours is None or pair.theirs is None:
            continue
        ours, stall = pair.ours.verdict, pair.ours.verdict.stall
        bounds = "–" if stall is None else f"{stall.low:.2f} – {stall.high:.2f}"
        marks = [" ✗" if pair.counted and answer is (not pair.starved) else "" for answer in pair.answers]
        waiting = "–" if pair.theirs.waiting is None else f"{pair.theirs.waiting:.2f}"
        said = f"{ours.bound}" + (f", {ours.cause}" if ours.cause else "")
        own = {None: "", **MARKS}[unseen(pair.program)]
        theirs = pair.theirs.verdict + marks[1]
        rows.append((pair.program.name + own, f"{pair.ours.stall:.2f}", bounds, said + marks[0], waiting, theirs))
    return measure.table(("program", "true stall", "our bounds", "ours", "its waiting share", "its verdict"), rows)


def page(pairs: Sequence[Pair], seconds: float) -> str:
    """What was asked, what came of it, and what does not count."""
    parts = [f"## {name} {version(tool)}\n\n{programs(pairs, tool)}\n" for tool, name in NAMES.items()]
    failed = [f"- {pair.program.name} under {pair.tool} gave nothing: {pair.failed}" for pair in pairs if pair.failed]
    ran = len({pair.program.name for pair in judged(pairs)})
    others = [pair.ours.run.others for pair in pairs if pair.ours is not None]
    used = f"{statistics.median(others):.0%} of the processors in the median run, {max(others):.0%} in the worst"
    marks = [f"- {mark.strip()} not counted: {why}" for why, mark in MARKS.items()]
    return f"""# What other tools say of the same runs

{ran} of {len(PROGRAMS)} programs, each run under each tool while `iofast monitor` watched that very process from
outside for {seconds:.0f} s. The question is the one that all of them answer: does training wait for its data?
Right is yes from a true stall of {CLEAR[1]:.0%}, no up to {CLEAR[0]:.0%}; between them nothing is counted. A tool's
answer is yes if any of its findings says so, not only the first. The tools are inside the program, which was changed
for them, and time every step; ours looks at an unchanged process, and abstains where it has seen too little. (Outside
of benchmarks it gives no verdict before 30 seconds of looks; here it had to after ten.)

{summary(pairs)}

The programs `train-…`, `cpu-…` compute on the processor, in forward and backward: nothing is simulated, and every tool
sees all there is. The others run on the simulated device of benchmarks/verdicts. A tool inside the process would read
CUDA events there, and the device has none; its work is time that no tool can name (TraceML: RESIDUAL-HEAVY; gpuprof:
unaccounted), which is not held against them. They count where each step waits for the device, for there the host's
clock says what CUDA events would.

{chr(10).join(parts)}
- ✗ wrong answer. {CLEAR[0]:.0%} < true stall < {CLEAR[1]:.0%}: either is right
{chr(10).join([*marks, *failed, machine.describe()])}
- TraceML was started by `traceml run`, with `init(mode="auto")` and `trace_step(model)` in the script; gpuprof by
  `with gpuprof.profile(name)`; both as their documentation says. Without an NVIDIA driver gpuprof makes up readings of
  a GPU ("MockGPU"); what it says of them is left out
- Other programs used {used}
- Command: `python -m benchmarks.bench_monitors --seconds {seconds:.0f}`
"""


def version(tool: str) -> str | None:
    """None if it is not installed."""
    return machine.version(NAMES[tool])


def main() -> None:
    parser = measure.parser(__doc__, photos=False, seconds=30.0, resume=False, repeats=1)
    parser.add_argument("--tool", action="append", default=[], choices=INSIDE)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this program; may be repeated")
    default = Path(tempfile.gettempdir()) / "iofast-monitors"
    parser.add_argument("--folder", type=Path, default=default, help="where runs are kept (default: %(default)s)")
    arguments = parser.parse_args()
    if missing := [name for tool, name in NAMES.items() if version(tool) is None]:
        print(f"bench_monitors: left out, for want of {' and '.join(missing)}; see --help", file=sys.stderr)
        return
    folder: Path = arguments.folder.resolve()
    if not arguments.resume:
        shutil.rmtree(folder, ignore_errors=True)
    library = build_nvml(folder)
    sides = [Side(tool, folder, library, arguments.seconds, arguments.repeats) for tool in INSIDE]
    pairs = []
    with tqdm(total=len(PROGRAMS) * len(sides), unit=" runs", disable=not sys.stderr.isatty()) as bar:
        for program in PROGRAMS:
            for side in sides:
                bar.set_description(program.name)
                chosen = (not arguments.only and not arguments.resume) or program.name in arguments.only
                chosen = chosen and (not arguments.tool or side.suite in arguments.tool)
                found = side.pair(program) if chosen else side.kept(program)
                if found is not None:
                    pairs.append(found)
                bar.update()
    measure.write("monitors", page(pairs, arguments.seconds), arguments.output)


if __name__ == "__main__":
    main()
