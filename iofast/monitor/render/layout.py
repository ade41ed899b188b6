"""Lines of the live screen: a function of the moments and of the terminal's size.

Parts get rows in the order of their worth: the verdict, timelines, the best advice, evidence, phases of a step and of
the training, notes, then more of each. A terminal of 60×20 shows the most important ones, a large one shows all.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.text import Text

from iofast.monitor.render import wording
from iofast.monitor.render.escape import plain
from iofast.monitor.render.moment import Moment
from iofast.monitor.snapshot import own_devices

Lines = list[Text]
_TALL = 32  # rows for one job from which timelines take two rows each
_MOST_ADVICE = 5
_MOST_CHANGED = 5  # lines of one piece of advice
_WIDEST = 0.4  # width of bounds beyond which a timeline shows nothing and a verdict abstains
_BLOCKS = " ▁▂▃▄▅▆▇█"
_TITLE = 10  # columns of a part's title
_GAP = Text("")
_ORDER = ("job", "verdict", "timelines", "gpus", "advice", "evidence", "step", "phases", "notes")


def drawn(
    moments: Sequence[Moment], selected: int, size: tuple[int, int], message: str = "", *, keys: bool = True
) -> Lines:
    """Lines that fit into `size` (columns, rows): the jobs, with the one at `selected` in detail.

    `message` is shown if there is no job, `keys` adds the keys.
    """
    width, height = size
    pressed = ("tab: next job  " if len(moments) > 1 else "") + "q: quit" if keys else ""
    lines = [_head(moments[selected].history.seconds if moments else None, pressed, width)]
    if len(moments) > 1:
        lines += _jobs(moments, selected, max(2, height // 6))
    if moments:
        lines += _fitted(moments[selected], width, height - len(lines))
    else:
        lines += [_GAP, Text(plain(message), "dim")]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _head(seconds: float | None, right: str, width: int) -> Text:
    left = "iofast monitor"
    watched = "" if seconds is None else f"  watching for {wording.clock(seconds)}"
    room = width - len(left) - len(right)
    return Text.assemble((left, "bold"), (f"{watched[:room]:<{max(0, room)}}", "dim"), (right, "dim"))


def _jobs(moments: Sequence[Moment], selected: int, most: int) -> Lines:
    first = min(max(0, selected - most // 2), max(0, len(moments) - most))
    lines = []
    for number, moment in enumerate(moments[first : first + most], first):
        stall = moment.verdict.stall
        state = "ended" if moment.ended else wording.headline(moment.verdict)
        share = wording.NONE if stall is None else wording.bounds(stall.low, stall.high)
        mark = "▸ " if number == selected else "  "
        style = wording.style(moment.verdict)
        parts = ((mark, "bold"), (f"{state:<32} ", style), (f"{share:>9}  ", style), wording.name(moment.job, 200))
        lines.append(Text.assemble(*parts, style="" if number == selected else "dim"))
    hidden = len(moments) - len(lines)
    return [*lines, Text(f"  and {hidden} more", "dim")] if hidden else lines


def _fitted(moment: Moment, width: int, height: int) -> Lines:
    """The parts of one job that fit."""
    verdict, timelines, gpus = _verdict(moment, width), _timelines(moment, width, 1), _devices(moment)
    tall = _timelines(moment, width, 2) if height >= _TALL else timelines
    pieces = [_advice(moment, number, width) for number in range(len(moment.verdict.advice[:_MOST_ADVICE]))]
    advice = [[line for piece in pieces[:most] for line in piece] for most in (1, 2, _MOST_ADVICE)]
    evidence, notes = _evidence(moment), _notes(moment, width)
    job, phases = _part("", [wording.name(moment.job, 200)], "dim"), _phases(moment)
    shown: dict[str, Lines] = {name: [] for name in _ORDER}
    wishes = [
        ("verdict", verdict[:2]),
        ("timelines", timelines),
        ("advice", advice[0]),
        ("job", job[:1]),
        ("advice", advice[1]),
        ("evidence", evidence[:2]),
        ("verdict", verdict),
        ("step", _part("step", [step] if (step := wording.step(moment.snapshot)) else [], "")),
        ("phases", phases),
        ("notes", notes[:1]),
        *((name, None) for name in ("verdict", "timelines", "advice", "evidence")),  # a blank line before it
        ("evidence", evidence),
        ("notes", notes),
        ("gpus", gpus),
        ("timelines", tall),
        ("advice", advice[2]),
        *((name, None) for name in ("gpus", "phases", "notes")),
    ]
    spaced: set[str] = set()
    for name, lines in wishes:
        wanted = shown | ({} if lines is None else {name: lines})
        gaps = spaced | ({name} if lines is None else set())
        if sum(len(part) + (part_name in gaps and bool(part)) for part_name, part in wanted.items()) <= height:
            shown, spaced = wanted, gaps
    placed: Lines = []
    for name, part in shown.items():
        placed += ([_GAP.copy()] if name in spaced and part else []) + part
    return placed


def _verdict(moment: Moment, width: int) -> Lines:
    verdict = moment.verdict
    style = wording.style(verdict)
    cause = "" if verdict.cause is None else f"  {verdict.cause.value}"
    judged = verdict.bound.sure
    ended = "  the program has ended" if moment.ended else ""
    badge = Text.assemble((f" {verdict.bound.value.upper()} ", f"bold reverse {style}"), (cause, f"bold {style}"))
    badge.append(f"  {verdict.severity.value}" if judged and verdict.severity.value != "none" else "", style)
    badge.append(ended, "bold")
    lines = [badge, Text(wording.stall_text(verdict.stall), "" if judged else "dim")]
    lines += [Text(line) for line in _wrapped(wording.explanation(verdict), width)[:3]]
    return [*lines, Text(wording.basis(verdict), "dim")]


def _timelines(moment: Moment, width: int, tall: int) -> Lines:
    recent = list(moment.history.recent)
    figure = 16
    room = max(8, width - _TITLE - 2 - figure)
    lines: Lines = []
    for row in wording.rows(moment):
        values = [_middle(getattr(now, row.low), getattr(now, row.high)) for now in recent[-room:]]
        if all(getattr(now, row.low) is None for now in recent[-room:]):
            continue  # a note has the reason
        known = [value for value in values if value is not None] or [1.0]
        style = "yellow" if row.low == "stall_low" else "cyan"
        rows = sparkline(values, room, row.scale or max(known), tall)
        for number, line in enumerate(rows):
            last = number == len(rows) - 1
            title, now_text = (row.name, row.now) if last else ("", "")
            lines.append(Text.assemble(f"{title:<{_TITLE}} ", (line, style), f" {now_text:>{figure}}"))
    return lines


def _middle(low: float | None, high: float | None) -> float | None:
    """Middle of two bounds; None if they are so wide that it would be a guess."""
    return None if low is None or high is None or high - low > _WIDEST else (low + high) / 2


def sparkline(values: Sequence[float | None], width: int, scale: float, rows: int = 1) -> list[str]:
    """`values` as `rows` lines of blocks, the newest at the right; `scale` is full height, None is empty."""
    steps = 8 * rows - 1  # leaves a gap below the timeline above
    levels = [0 if value is None else _level(value, scale, steps) for value in values[-width:]]
    levels = [0] * (width - len(levels)) + levels
    if rows == 1:
        return ["".join([_BLOCKS[level] for level in levels])]
    return ["".join([_BLOCKS[min(8, max(0, level - 8 * row))] for level in levels]) for row in reversed(range(rows))]


def _level(value: float, scale: float, steps: int) -> int:
    if value <= 0 or scale <= 0:
        return 1  # a measured zero is the lowest block
    return steps if value >= scale else int(value / scale * steps + 0.5) or 1


def _devices(moment: Moment) -> Lines:
    lines = []
    for device in own_devices(moment.snapshot.devices):
        parts = [f"busy {wording.percent(device.busy)}", f"SM {wording.percent(device.sm_active)}"]
        parts += [f"slowed by {', '.join(map(plain, device.throttle_reasons))}"] if device.throttle_reasons else []
        parts += ["not seen whose"] if device.own is None else []  # the rest may be cut at 80 columns
        if device.memory_used is not None and device.memory_total:
            parts.append(f"memory {device.memory_used / 1e9:.1f} of {device.memory_total / 1e9:.1f} GB")
        if device.power_w is not None:
            limit = "" if device.power_limit_w is None else f" of {device.power_limit_w:.0f}"
            parts.append(f"{device.power_w:.0f}{limit} W")
        title = f"GPU {device.index}" + (" MIG" if device.mig else "")
        lines.append(Text.assemble((f"{title:<{_TITLE}} ", "bold"), f"{plain(device.name, 24)}  {'  '.join(parts)}"))
    return lines


def _advice(moment: Moment, number: int, width: int) -> Lines:
    advice = moment.verdict.advice[number]
    promise = wording.gain(advice)
    text = wording.sentence(plain(advice.text)) + (f" ({promise})" if promise else "")
    lines = _part("" if number else "advice", _wrapped(text, width - _TITLE - 1)[:3], "")
    room = max(1, width - _TITLE - 1)
    change = [part for line in wording.change(advice) for part in _folded(line, room)]
    return lines + _part("", change[:_MOST_CHANGED], "green")


def _folded(line: str, room: int) -> list[str]:
    """A line to paste in parts that fit: its indentation is kept, and a command goes on behind a backslash."""
    if len(line) <= room:
        return [line]
    parts = textwrap.wrap(line, max(1, room - 1), break_on_hyphens=False, drop_whitespace=False)
    on = "\\" if line.startswith("iofast ") else ""
    return [*(f"{part}{on}" for part in parts[:-1]), parts[-1]]


def _evidence(moment: Moment) -> Lines:
    return _part("evidence", [plain(evidence.text) for evidence in moment.verdict.evidence], "")


def _phases(moment: Moment) -> Lines:
    text = wording.phases(moment.verdict)
    return _part("phases", [text] if text else [], "")


def _notes(moment: Moment, width: int) -> Lines:
    wrapped = [line for note in moment.snapshot.notes for line in _wrapped(plain(note), width - _TITLE - 1)[:2]]
    return _part("note", wrapped, "dim")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(1, width))


def _part(title: str, texts: Sequence[str], style: str) -> Lines:
    """Lines with a title beside the first one. The line of the job has no title and begins at the left."""
    if not title and style == "dim":
        return [Text(text, style) for text in texts]  # cut by `drawn`
    titles = [title, *[""] * (len(texts) - 1)]
    pairs = zip(titles, texts, strict=False)
    return [Text.assemble((f"{name:<{_TITLE}} ", "bold"), (text, style)) for name, text in pairs]
