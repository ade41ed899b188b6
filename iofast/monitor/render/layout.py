"""Lines of the live screen, of `--once` and of the report: a function of the moments and of the terminal's size.

Parts get rows in the order of their worth, so a terminal of 60×20 shows what matters and a large one everything.
"""

import textwrap
from collections.abc import Sequence
from itertools import chain

from rich.text import Text

from iofast.monitor.findings import Bound
from iofast.monitor.render import wording
from iofast.monitor.render.moment import Figures, History, Moment
from iofast.monitor.render.wording import plain

Lines = list[Text]
WIDTH = 120  # columns where there is no screen
_SPANS = 40  # verdicts over time
_MOST_ADVICE = 5
_MOST_CHANGED = 5  # lines of one piece of advice
_WIDEST = 0.4  # width of bounds beyond which a timeline shows nothing and a verdict abstains
_BLOCKS = " ▁▂▃▄▅▆▇█"
_TITLE = 10  # columns of a part's title
_FIGURE = 16  # columns of a timeline's present figure
_ORDER = (
    *("job", "verdict", "timelines", "gpus", "advice", "what if", "evidence", "step", "phases"),
    *("run", "verdicts", "notes"),
)


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
    lines += _fitted(moments[selected], width, height - len(lines)) if moments else [Text(plain(message), "dim")]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


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


def whole(moment: Moment) -> Lines:
    """All parts of one job in full, with timelines of the whole run, for `--once` and for the report."""
    parts = dict(_wishes(moment, WIDTH, moment.history.timeline.stretches, most=None))
    if moment.verdict.bound is not Bound.IDLE:  # what does not train waits for no batch
        sums = wording.sums(moment.history.sums)
        parts["run"] = _part("run", [f"{part:<20}{time:>20}{share:>12}" for part, time, share in sums])
    parts["verdicts"] = _part("verdicts", _spans(moment.history))
    return [line for name in _ORDER if parts.get(name) for line in (*parts[name], Text(""))]


def _spans(history: History) -> list[str]:
    lines = [
        f"{wording.clock(one.start_s)} to {wording.clock(one.end_s)}  {wording.headline(one)}"
        f"  {'' if one.stall is None else wording.bounds(one.stall.low, one.stall.high)}"
        for one in reversed(history.spans)
    ]
    return [*lines[:_SPANS], *([f"and {len(lines) - _SPANS} earlier"] if len(lines) > _SPANS else [])]


def _fitted(moment: Moment, width: int, height: int) -> Lines:
    """The parts of one job that fit: each wish replaces what its part has so far, if there is room for it."""
    shown: dict[str, Lines] = {name: [] for name in _ORDER}
    for name, lines in _wishes(moment, width, list(moment.history.recent), most=3):
        if sum(map(len, shown.values())) - len(shown[name]) + len(lines) <= height:
            shown[name] = lines
    spare = height - sum(map(len, shown.values()))
    parts = [part for part in shown.values() if part]
    gaps = [[Text("")]] * len(parts) if spare >= len(parts) else [[]] * len(parts)
    return [line for gap, part in zip(gaps, parts, strict=True) for line in (*gap, *part)]


def _wishes(moment: Moment, width: int, run: Sequence[Figures], *, most: int | None) -> list[tuple[str, Lines]]:
    """Parts in the order of their worth; the last wish for a part has all of it. `most`: lines of one text."""
    verdict, room = _verdict(moment, width, most), max(1, width - _TITLE - 1)
    advice = [_advice(moment, number, room, most) for number in range(len(moment.verdict.advice[:_MOST_ADVICE]))]
    evidence = _part("evidence", [plain(evidence.text) for evidence in moment.verdict.evidence])
    notes = [line for note in moment.snapshot.notes for line in textwrap.wrap(plain(note), room)[:most]]
    predicted = _part("what if", [plain(wording.prediction(one)) for one in moment.verdict.what_if])
    gpus = [
        Text.assemble((f"{title:<{_TITLE}} ", "bold"), f"{name}  {figures}")
        for title, name, figures in wording.devices(moment.snapshot)
    ]
    return [
        ("verdict", verdict[:2]),
        ("timelines", _timelines(moment, width, run)),
        *((("advice", advice[0]),) if advice else ()),
        ("job", [Text(wording.name(moment.job, 200), "dim")]),
        ("advice", [*chain(*advice[:2])]),
        ("evidence", evidence[:2]),
        ("verdict", verdict),
        ("step", _part("step", [step] if (step := wording.step(moment.snapshot)) else [])),
        ("phases", _part("phases", [text] if (text := wording.phases(moment.verdict)) else [])),
        ("what if", predicted[:3]),
        ("notes", _part("note", notes[:1], "dim")),
        ("evidence", evidence),
        ("notes", _part("note", notes, "dim")),
        ("gpus", gpus),
        ("advice", [*chain(*advice)]),
        ("what if", predicted),
    ]


def _verdict(moment: Moment, width: int, most: int | None) -> Lines:
    verdict, style = moment.verdict, wording.style(moment.verdict)
    severity = verdict.severity.value if verdict.bound.sure and verdict.severity.value != "none" else ""
    badge = Text.assemble((f" {verdict.bound.value.upper()} ", f"bold reverse {style}"))
    badge.append("" if verdict.cause is None else f"  {verdict.cause.value}", f"bold {style}")
    badge.append(f"  {severity}", style)
    badge.append("  the program has ended" if moment.ended else "", "bold")
    figures = "; ".join(filter(None, (wording.stall_text(verdict.stall), wording.beside(verdict))))
    lines = [badge, *([Text(figures, "" if verdict.bound.sure else "dim")] if figures else [])]
    lines += [Text(line) for line in textwrap.wrap(wording.explanation(verdict), max(1, width))[:most]]
    return [*lines, Text(wording.basis(verdict), "dim")]


def _timelines(moment: Moment, width: int, run: Sequence[Figures]) -> Lines:
    room = max(8, width - _TITLE - 2 - _FIGURE)
    recent = run[-room:]
    lines: Lines = []
    for row in wording.rows(moment):
        if all(getattr(now, row.low) is None for now in recent):
            continue  # a note has the reason
        values = [_middle(getattr(now, row.low), getattr(now, row.high)) for now in recent]
        scale = row.scale or max((value for value in values if value is not None), default=1.0)
        style = "yellow" if row.low == "stall_low" else "cyan"
        blocks = (sparkline(values, room, scale), style)
        lines.append(Text.assemble(f"{row.name:<{_TITLE}} ", blocks, f" {row.now:>{_FIGURE}}"))
    return lines


def _middle(low: float | None, high: float | None) -> float | None:
    """Middle of two bounds; None if they are so wide that it would be a guess."""
    return None if low is None or high is None or high - low > _WIDEST else (low + high) / 2


def sparkline(values: Sequence[float | None], width: int, scale: float) -> str:
    """`values` as blocks, the newest at the right; `scale` is full height, None is empty, 0 the lowest block."""
    most = len(_BLOCKS) - 2  # leaves a gap below the timeline above
    levels = [
        0 if value is None else max(1, min(most, int(value / scale * most + 0.5))) if scale > 0 else 1
        for value in values[-width:]
    ]
    return "".join(_BLOCKS[level] for level in levels).rjust(width)


def _advice(moment: Moment, number: int, room: int, most: int | None) -> Lines:
    advice = moment.verdict.advice[number]
    promise = wording.gain(advice)
    text = wording.sentence(plain(advice.text)) + (f" ({promise})" if promise else "")
    lines = _part("" if number else "advice", textwrap.wrap(text, room)[:most])
    change = wording.change(advice)
    if most is not None:  # a screen cuts what is too long
        change = [part for line in change for part in _folded(line, room)][:_MOST_CHANGED]
    return lines + _part("", change, "green")


def _folded(line: str, room: int) -> list[str]:
    """A line to paste in parts that fit: its indentation is kept, and a command goes on behind a backslash."""
    if len(line) <= room:
        return [line]
    parts = textwrap.wrap(line, max(1, room - 1), break_on_hyphens=False, drop_whitespace=False)
    on = "\\" if line.startswith("iofast ") else ""
    return [*(f"{part}{on}" for part in parts[:-1]), parts[-1]]


def _part(title: str, texts: Sequence[str], style: str = "") -> Lines:
    """Lines with a title beside the first one."""
    titles = [title, *[""] * (len(texts) - 1)]
    pairs = zip(titles, texts, strict=False)
    return [Text.assemble((f"{name:<{_TITLE}} ", "bold"), (text, style)) for name, text in pairs]
