"""The results of a suite: each run compared with its program, and the figures with goals."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measure import table
from benchmarks.verdicts.program_runs import Run
from iofast.monitor.findings import Bound, Verdict
from iofast.monitor.verdict import classify

INSIDE_ERROR = 0.03
WIDEST = 0.40  # wider bounds of the stall count as an abstention
_ROUNDING = 0.005
_NOTICE, _BOUND = 0.05, 0.10  # from these stalls on, input-bound may be and must be the verdict
_BY_STALL = frozenset({Bound.INPUT, Bound.COMPUTE})
# A program trains for twenty seconds here; the monitor's default of 30 s is for uncounted steps.
SHORT_S = 10.0


@dataclass(frozen=True)
class Scored:
    """One run and its verdict."""

    run: Run
    verdict: Verdict

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The right verdicts: by the run's recorded timelines, for programs built to be input- or compute-bound.

        On a machine that is slower for a minute, a compute-bound program becomes input-bound. Between 5 and 10 % both
        are right.
        """
        built = self.run.program.bounds
        if not set(built) <= _BY_STALL:
            return built
        if self.stall >= _BOUND:
            return (Bound.INPUT,)
        return (Bound.COMPUTE,) if self.stall < _NOTICE else (Bound.INPUT, Bound.COMPUTE)

    @property
    def right(self) -> bool:
        return self.verdict.bound in self.bounds

    @property
    def as_built(self) -> bool:
        """Whether the verdict is one that the program was built for."""
        return self.verdict.bound in self.run.program.bounds

    @property
    def cause_right(self) -> bool | None:
        """None if the program has no cause, or if another right verdict was given."""
        program = self.run.program
        if not program.causes or (self.right and self.verdict.bound is not Bound.INPUT):
            return None
        return self.verdict.cause in program.causes

    @property
    def judgeable(self) -> bool:
        """Whether the program trains, and waits for nothing that looks like a loader."""
        return not {Bound.UNKNOWN, Bound.IDLE, Bound.STALLED} & set(self.run.program.bounds)

    @property
    def abstained(self) -> bool:
        stall = self.verdict.stall
        if not self.judgeable:
            return False
        return self.verdict.bound is Bound.UNKNOWN or stall is None or stall.width > WIDEST

    @property
    def misled(self) -> bool:
        """Whether the verdict is wrong and no abstention."""
        return not self.right and self.verdict.bound is not Bound.UNKNOWN

    @property
    def false_input(self) -> bool:
        return Bound.INPUT not in self.bounds and self.verdict.bound is Bound.INPUT

    @property
    def stall(self) -> float:
        """The true stall; starts of epochs count only in programs that are built for them."""
        assert self.run.true is not None
        return self.run.true.stall if self.run.program.load == "start" else self.run.true.within_epochs

    @property
    def contained(self) -> bool | None:
        """Whether the true stall lies within the bounds; None without bounds."""
        bounds = self.verdict.stall
        return None if bounds is None else bounds.low - _ROUNDING <= self.stall <= bounds.high + _ROUNDING

    @property
    def error(self) -> float | None:
        """The distance of the bounds' middle from the true stall."""
        bounds = self.verdict.stall
        return None if bounds is None else abs((bounds.low + bounds.high) / 2 - self.stall)


def score(run: Run, min_seconds: float = SHORT_S) -> Scored:
    """Judge what was seen of a run that was not skipped."""
    assert run.seen is not None
    return Scored(run, classify(run.seen.snapshots, min_seconds=min_seconds))


def asked(scored: Sequence[Scored], *, inside: bool) -> list[tuple[str, str, str, bool]]:
    """(what, asked for, found, met), of the runs inside or of those outside."""
    count = len(scored)
    causes = [one.cause_right for one in scored if one.cause_right is not None]
    false = sum(one.false_input for one in scored)
    misled = sum(one.misled for one in scored)
    abstained = sum(one.abstained for one in scored)
    rows = [
        _share("right verdicts", sum(one.right for one in scored), count, 0.97),
        ("wrong verdicts, abstentions apart", "0", str(misled), not misled),
        _share("the same, by what programs were built for", sum(one.as_built for one in scored), count, 0.95),
        _share("right causes", sum(causes), len(causes), 0.90),
        ("false input-bound", "0", str(false), not false),
        ("abstentions", "≤ 10 %", f"{abstained} of {count}", abstained <= 0.10 * count),
    ]
    if inside:
        worst = max((one.error for one in scored if one.error is not None), default=0.0)
        rows.append(("stall, largest error", "≤ 3 points", f"{100 * worst:.1f} points", worst <= INSIDE_ERROR))
    else:
        known = [one for one in scored if one.verdict.stall is not None and one.judgeable]
        widths = sorted(one.verdict.stall.width for one in known if one.verdict.stall is not None)
        rows.append(_share("true stall within the bounds", sum(bool(one.contained) for one in known), len(known), 0.95))
        middle = statistics.median(widths) if widths else 1.0
        wide = widths[min(len(widths) - 1, int(0.9 * len(widths)))] if widths else 1.0
        rows.append(("width, median", "≤ 0.10", f"{middle:.2f}", middle <= 0.10))
        rows.append(("width, nine of ten", "≤ 0.40", f"{wide:.2f}", wide <= 0.40))
    return rows


def _share(what: str, found: int, count: int, least: float) -> tuple[str, str, str, bool]:
    return what, f"≥ {100 * least:.0f} %", f"{found} of {count}", count > 0 and found >= least * count


def confusion(scored: Sequence[Scored]) -> str:
    """Rows are the right verdicts, columns the given ones."""
    return _matrix([("/".join(one.bounds), str(one.verdict.bound)) for one in scored])


def causes(scored: Sequence[Scored]) -> str:
    """The same of causes, of the programs that have one."""
    pairs = []
    for one in scored:
        wanted = one.run.program.causes
        if wanted and one.cause_right is not None:
            pairs.append(("/".join(wanted), str(one.verdict.cause or f"({one.verdict.bound})")))
    return _matrix(pairs)


def _matrix(pairs: Sequence[tuple[str, str]]) -> str:
    counts = Counter(pairs)
    rows, columns = sorted({built for built, _ in pairs}), sorted({said for _, said in pairs})
    lines = [(right, *(str(counts[right, said] or "") for said in columns)) for right in rows]
    return table(("right", *columns), lines)


def programs(scored: Sequence[Scored]) -> str:
    """A line for each program."""
    lines = []
    for one in scored:
        program, true, bounds = one.run.program, one.run.true, one.verdict.stall
        assert true is not None
        said = f"{one.verdict.bound}" + (f", {one.verdict.cause}" if one.verdict.cause else "")
        wrong = "" if one.right and one.cause_right is not False else " ✗"
        missed = one.error is not None and one.error > INSIDE_ERROR if one.run.inside else not one.contained
        shown = "–" if bounds is None else f"{bounds.low:.2f} – {bounds.high:.2f}" + (" ✗" if missed else "")
        idle = "–" if true.idle is None else f"{true.idle:.2f}"
        lines.append(
            (program.name, f"{program.stall:.2f}", f"{one.stall:.3f}", f"{true.wait:.2f}", idle, shown, said + wrong)
        )
    return table(("program", "built for", "true stall", "waiting", "idle", "bounds", "verdict, cause"), lines)
