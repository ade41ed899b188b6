"""Lines of the live screen, of `--once` and of the report: a function of the moments and of the terminal's size.

Parts come in the order of their worth, so a terminal of 60×20 shows what matters and a large one everything.
"""

import textwrap
from collections.abc import Sequence

from rich.text import Text

from iofast.monitor.findings import Advice, Bound, Verdict, longer
from iofast.monitor.render import wording
from iofast.monitor.render.moment import Figures, Moment
from iofast.monitor.render.wording import plain

Lines = list[Text]
WIDTH = 120  # columns where there is no screen
_MOST_ADVICE = 5
_MOST_LINES = 3  # of one text on a screen
_MOST_CHANGED = 5  # lines of one piece of advice on it
_WIDEST = 0.4  # width of bounds beyond which a timeline shows nothing and a verdict abstains
_BLOCKS = " ▁▂▃▄▅▆▇█"
_TITLE = 10  # columns of a part's title
_FIGURE = 16  # columns of a timeline's present figure


def drawn(
    moments: Sequence[Moment], selected: int, size: tuple[int, int], message: str = "", *, keys: bool = True
) -> Lines:
    """Lines that fit into `size` (columns, rows): the jobs, with the one at `selected` in detail.

    `message` is shown if there is no job, `keys` adds the keys.
    """
    width, height = size
    pressed = ("tab: next job  " if len(moments) > 1 else "") + "q: quit" if keys else ""
    watched = f"  watching for {wording.clock(moments[selected].history.seconds)}" if moments else ""
    room = max(0, width - len("iofast monitor") - len(pressed))
    lines = [Text.assemble(("iofast monitor", "bold"), (f"{watched[:room]:<{room}}{pressed}", "dim"))]
    if len(moments) > 1:
        lines += _jobs(moments, selected, max(2, height // 6))
    if moments:
        parts = _parts(moments[selected], width, height)
        spare = height - len(lines) - sum(map(len, parts))
        lines += [line for part in parts for line in (*[Text("")] * (spare >= len(parts)), *part)]
    else:
        lines.append(Text(plain(message), "dim"))
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def whole(moment: Moment) -> Lines:
    """All parts of one job in full, with timelines of the whole run, for `--once` and for the report."""
    return [line for part in _parts(moment, WIDTH, None) for line in (*part, Text(""))]


def _jobs(moments: Sequence[Moment], selected: int, most: int) -> Lines:
    first = min(max(0, selected - most // 2), max(0, len(moments) - most))
    lines = []
    for number, moment in enumerate(moments[first : first + most], first):
        stall, style = moment.verdict.stall, wording.style(moment.verdict)
        state = "ended" if moment.ended else wording.headline(moment.verdict)
        share = wording.NONE if stall is None else wording.bounds(stall.low, stall.high)
        mark = "▸ " if number == selected else "  "
        parts = ((mark, "bold"), (f"{state:<32} ", style), (f"{share:>9}  ", style), wording.name(moment.job, 200))
        lines.append(Text.assemble(*parts, style="" if number == selected else "dim"))
    hidden = len(moments) - len(lines)
    return [*lines, Text(f"  and {hidden} more", "dim")] if hidden else lines


def _parts(moment: Moment, width: int, height: int | None) -> list[Lines]:
    """The parts of one job, without empty ones. A screen's `height` bounds the long ones; None for all of them."""
    verdict, history, room = moment.verdict, moment.history, max(1, width - _TITLE - 1)
    most, few = (None, None) if height is None else (_MOST_LINES, height // 8)
    run = history.timeline.stretches if height is None else list(history.recent)
    pieces = _MOST_ADVICE if height is None else min(_MOST_ADVICE, height // 10)
    advice = [line for one in verdict.advice[:pieces] for line in _advice(one, room, most)]
    predicted = [plain(wording.prediction(one)) for one in verdict.what_if]
    notes = [line for note in moment.snapshot.notes for line in textwrap.wrap(plain(note), room)[:most]]
    parts = [
        [Text(wording.name(moment.job, 200), "dim")],
        _verdict(verdict, width, most, ended=moment.ended),
        _timelines(moment, width, run),
        _titled("advice", advice),
        _titled("what if", predicted[:few]),
        _titled("evidence", [plain(evidence.text) for evidence in verdict.evidence]),
        [line for title, text in wording.devices(moment.snapshot) for line in _titled(title, [text])],
        # what does not train waits for no batch
        _titled("run", list(wording.sums(history.sums)) if verdict.bound is not Bound.IDLE else []),
        _titled("verdicts", [wording.held(one) for one in reversed(history.spans)][:few]),
        _titled("note", notes, "dim"),
    ]
    return [part for part in parts if part]


def _verdict(verdict: Verdict, width: int, most: int | None, *, ended: bool) -> Lines:
    style = wording.style(verdict)
    severity = verdict.severity.value if verdict.bound.sure and verdict.severity.value != "none" else ""
    badge = Text.assemble((f" {verdict.bound.value.upper()} ", f"bold reverse {style}"))
    badge.append("" if verdict.cause is None else f"  {verdict.cause.value}", f"bold {style}")
    badge.append(f"  {severity}", style)
    badge.append("  the program has ended" if ended else "", "bold")
    found, steps = verdict.interference, "" if verdict.steps is None else f"{verdict.steps:,} steps in "
    beside = longer(found) if found is not None and found.high >= 0.01 else ""
    figures = "; ".join(filter(None, (wording.stall_text(verdict.stall), beside)))
    lines = [badge, *([Text(figures, "" if verdict.bound.sure else "dim")] if figures else [])]
    lines += [Text(line) for line in textwrap.wrap(wording.explanation(verdict), max(1, width))[:most]]
    return [*lines, Text(f"{wording.TIERS[verdict.tier]}, {steps}{verdict.seconds:.0f} s of training", "dim")]


def _timelines(moment: Moment, width: int, run: Sequence[Figures]) -> Lines:
    """A line for each figure that is known: its title, its values in `run` as blocks, the present one."""
    now, stall = moment.figures, moment.verdict.stall
    wait = "host wait" if stall is not None and stall.host_wait else "stall"
    rows = [(wait, wording.bounds(now.stall_low, now.stall_high), list(map(_middle, run)), 1.0, "yellow")]
    for name, (title, _, unit) in wording.FIGURES.items():
        scale = {"%": 1.0, " cores": moment.snapshot.system.cores}.get(unit, 0.0)
        text, values = wording.figure(name, getattr(now, name)), [getattr(one, name) for one in run]
        rows.append((title, text, values, scale, "cyan"))
    room = max(8, width - _TITLE - 2 - _FIGURE)
    lines: Lines = []
    for title, text, values, scale, style in rows:
        known = [value for value in values[-room:] if value is not None]
        if known or text != wording.NONE:  # otherwise a note has the reason
            blocks = sparkline(values, room, scale or max(known, default=1.0))
            lines.append(Text.assemble(f"{title:<{_TITLE}} ", (blocks, style), f" {text:>{_FIGURE}}"))
    return lines


def _middle(now: Figures) -> float | None:
    """Middle of the bounds of the stall; None if they are so wide that it would be a guess."""
    low, high = now.stall_low, now.stall_high
    return None if low is None or high is None or high - low > _WIDEST else (low + high) / 2


def sparkline(values: Sequence[float | None], width: int, scale: float) -> str:
    """`values` as blocks, the newest at the right; `scale` is full height, None is empty, 0 the lowest block."""
    most = len(_BLOCKS) - 2  # leaves a gap below the timeline above
    levels = [
        0 if value is None else max(1, min(most, int(value / scale * most + 0.5))) if scale > 0 else 1
        for value in values[-width:]
    ]
    return "".join(_BLOCKS[level] for level in levels).rjust(width)


def _advice(advice: Advice, room: int, most: int | None) -> Lines:
    notes = [] if advice.gain is None else [f"at most {advice.gain:.2f}× as fast"]
    notes += ["changes accuracy"] * advice.changes_accuracy + [plain(advice.risk)] * bool(advice.risk)
    text = wording.sentence(plain(advice.text)) + (f" ({'; '.join(notes)})" if notes else "")
    change = wording.change(advice)
    if most is not None:  # a screen cuts what is too long
        change = [part for line in change for part in _folded(line, room)][:_MOST_CHANGED]
    return [*map(Text, textwrap.wrap(text, room)[:most]), *(Text(line, "green") for line in change)]


def _folded(line: str, room: int) -> list[str]:
    """A line to paste in parts that fit: its indentation is kept, and a command goes on behind a backslash."""
    if len(line) <= room:
        return [line]
    parts = textwrap.wrap(line, max(1, room - 1), break_on_hyphens=False, drop_whitespace=False)
    on = "\\" if line.startswith("iofast ") else ""
    return [*(f"{part}{on}" for part in parts[:-1]), parts[-1]]


def _titled(title: str, texts: Sequence[str | Text], style: str = "") -> Lines:
    """Lines with a title beside the first one."""
    titles = [title, *[""] * (len(texts) - 1)]
    pairs = zip(titles, texts, strict=False)
    return [
        Text.assemble((f"{name:<{_TITLE}} ", "bold"), text if isinstance(text, Text) else (text, style))
        for name, text in pairs
    ]
