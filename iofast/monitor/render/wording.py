"""A verdict as sentences, with text of the watched process made plain: its name may hold an escape sequence."""

from collections.abc import Callable, Iterator

from tqdm import tqdm

from iofast import errors
from iofast.monitor.findings import Advice, Band, Bound, Cause, Prediction, Severity, StallBounds, Verdict
from iofast.monitor.phases import RunSums
from iofast.monitor.render.moment import Moment, Span
from iofast.monitor.snapshot import Job, Snapshot, Tier, own_devices

MEANING = {
    Bound.INPUT: "The device waits for batches.",
    Bound.TRANSFER: "The device waits for batches to be copied to it.",
    Bound.LAUNCH: "The device waits for Python to launch its next operation.",
    Bound.SYNC: "The program waits for the device at lines that need not, and the device then waits for the program.",
    Bound.COMPUTE: "The device has work all the time: the loader costs nothing.",
    Bound.MEMORY: "The device has work all the time, and its memory is what limits it.",
    Bound.COMMUNICATION: "The device waits for other ranks.",
    Bound.THROTTLED: "A limit slows it down: the device's power or temperature, or the job's CPU quota.",
    Bound.STALLED: "No batch comes.",
    Bound.IDLE: "Nothing is being trained.",
    Bound.UNKNOWN: "Not enough was seen for a verdict.",
}
WHY = {
    Cause.STORAGE: "storage is slower than the loader asks for",
    Cause.REMOTE: "the object store answers more slowly than the loader asks",
    Cause.PAGE_CACHE: "the data does not fit into the page cache, so it is read from disk in each epoch",
    Cause.WORKERS: "decoding takes the workers' time, and cores are free for more",
    Cause.CPU: "decoding takes all cores there are",
    Cause.TAKEN: "other programs use the cores",
    Cause.SINGLE: "the training thread loads its batches itself",
    Cause.COLLATE: "batches are late on their way from workers to the training process",
    Cause.PIN: "the thread that pins batches is late",
    Cause.EPOCH_START: "an epoch begins with starting workers and filling the queue",
    Cause.RANK_SKEW: "this rank's data comes later than that of the others, which wait for it",
    Cause.FEEDER: "another program sends the batches, and is late",
}
TIERS = {
    Tier.OUTSIDE: "seen from outside (/proc, NVML)",
    Tier.STACKS: "seen from outside, Python stacks too",
    Tier.INSIDE: "measured inside the process",
}
FIGURES = {  # of an interval: title, factor and unit of the text
    "device_busy": ("GPU busy", 100.0, "%"),
    "sm_active": ("SM active", 100.0, "%"),
    "images_per_s": ("images/s", 1.0, ""),
    "loader_cores": ("loader CPU", 1.0, " cores"),
    "main_cores": ("main CPU", 1.0, " cores"),
    "disk_bytes_per_s": ("disk read", 1e-6, " MB/s"),
}
_STYLES = dict(zip(Severity, ("green", "cyan", "yellow", "red"), strict=True))
NONE = "–"
clock = tqdm.format_interval  # seconds as 00:42, 12:05, 27:03:10
_IN_SUMMARY = frozenset({"waits_at", "step_phases", "stack_phases"})  # evidence that a line has room for
LONGEST = 400  # characters; longer text is cut


def plain(text: str, longest: int = LONGEST) -> str:
    r"""`text` on one line of at most `longest` characters, with unprintable ones escaped (\x1b, \u202e)."""
    line = errors.plain(text[: longest + 1])
    return line if len(line) <= longest else line[: longest - 1] + "…"


def headline(verdict: Verdict | Span) -> str:
    """Verdict and cause by their names."""
    return verdict.bound.value if verdict.cause is None else f"{verdict.bound.value}: {verdict.cause.value}"


def style(verdict: Verdict) -> str:
    """Name of a terminal's colour: by the severity; another limit than the input is as bad as `bound`."""
    if not verdict.bound.sure:
        return "dim"
    quiet = verdict.severity is Severity.NONE and verdict.bound not in (Bound.COMPUTE, Bound.MEMORY)
    return _STYLES[Severity.BOUND if quiet else verdict.severity]


def explanation(verdict: Verdict) -> str:
    """Meaning of the verdict in a sentence; the reason of unknown, idle and stalled."""
    if verdict.reason and (verdict.bound is Bound.STALLED or not verdict.bound.sure):
        return sentence(plain(verdict.reason))
    meaning = MEANING[verdict.bound]
    if verdict.stall is not None and verdict.stall.host_wait:
        meaning = meaning.replace("The device", "The training thread")
    if verdict.bound is Bound.COMPUTE and verdict.cause is Cause.TAKEN:
        meaning = "The training thread is ready to run and gets no core."
    if verdict.cause is not None:
        meaning = f"{meaning.removesuffix('.')}: {WHY[verdict.cause]}."
    return meaning


def sentence(text: str) -> str:
    """`text` with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".") if text else ""


def bounds(low: float | None, high: float | None) -> str:
    """A share or its bounds in percent: 34%, 31–38%."""
    if low is None or high is None:
        return NONE
    a, b = round(100 * low), round(100 * high)
    return f"{a}%" if a == b else f"{a}–{b}%"


def stall_text(stall: StallBounds | None) -> str:
    """The stall with its bounds and its kind; "" if it is unknown."""
    if stall is None:
        return ""
    if stall.host_wait:
        return f"host wait {bounds(stall.low, stall.high)} of training time (no device to see)"
    return f"stall {bounds(stall.low, stall.high)} of training time"


def prediction(one: Prediction) -> str:
    """A prediction as one line: the change, the band of the rate, the assumption."""
    images = "" if one.images is None else f" ({one.images[0]:,.0f} to {one.images[1]:,.0f} images/s)"
    times = span(one.low, one.high, lambda rate: f"{rate:.1f}")
    return f"{one.change}: {times} times as fast{images}; {one.assumption}"


def change(advice: Advice) -> list[str]:
    """Lines to paste: a command, or some lines of source."""
    return [plain(line) for line in advice.change.split("\n")] if advice.change else []


def sums(run: RunSums | None) -> Iterator[str]:
    """Lines of a table: part of a run, its time, its share; parts that took nothing are left out."""
    if run is None:
        return
    for name in ("computed", "waited", "start_up", "epoch_starts", "validation", "checkpoints", "paused"):
        share = getattr(run, name)
        low, high = (share.low, share.high) if isinstance(share, Band) else (share, share)
        if high >= 0.001:
            time = span(low * run.seconds, high * run.seconds, clock)
            yield f"{name.replace('_', ' '):<20}{time:>20}{bounds(low, high):>12}"
    if run.lost_gpu_hours is not None:
        lost = span(run.lost_gpu_hours.low, run.lost_gpu_hours.high, "{:.2f}".format)
        yield f"{'GPU-hours lost':<20}{lost:>20}{f'of {run.devices * run.seconds / 3600:.2f}':>12}"


def held(one: Span) -> str:
    """A verdict, with when it held and with its stall."""
    stall = "" if one.stall is None else bounds(one.stall.low, one.stall.high)
    return f"{clock(one.start_s)} to {clock(one.end_s)}  {headline(one)}  {stall}"


def span(low: float, high: float, text: Callable[[float], str]) -> str:
    """Two bounds as words: 0:42, or 0:42 to 1:05."""
    return text(low) if text(low) == text(high) else f"{text(low)} to {text(high)}"


def name(job: Job, longest: int = 60) -> str:
    """A job in a few words: pid, rank, command."""
    several = job.rank is not None and job.world_size != 1
    rank = (f" rank {job.rank}" + (f"/{job.world_size}" if job.world_size else "")) if several else ""
    program, _, rest = job.command.partition(" ")
    command = f"{program.rpartition('/')[2]} {rest}".rstrip()  # without the folder of the interpreter
    return f"pid {job.pid}{rank}: {plain(command, longest)}"


def percent(value: float | None) -> str:
    """A share in percent."""
    return NONE if value is None else f"{value:.0%}"


def devices(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """The job's devices: which, and its name and figures; the most important first, as the rest may be cut."""
    for one in own_devices(snapshot.devices):
        parts = [plain(one.name, 24), f"busy {percent(one.busy)}", f"SM {percent(one.sm_active)}"]
        if one.throttle_reasons:
            parts.append(f"slowed by {', '.join(map(plain, one.throttle_reasons))}")
        if one.own is None:
            parts.append("not seen whose")
        if one.memory_used is not None and one.memory_total:
            parts.append(f"memory {one.memory_used / 1e9:.1f} of {one.memory_total / 1e9:.1f} GB")
        if one.power_w is not None:
            limit = "" if one.power_limit_w is None else f" of {one.power_limit_w:.0f}"
            parts.append(f"{one.power_w:.0f}{limit} W")
        yield f"GPU {one.index}", "  ".join(parts)


def figure(name: str, value: float | None) -> str:
    """One of `FIGURES` with three digits and its unit."""
    if value is None:
        return NONE
    _, factor, unit = FIGURES[name]
    value *= factor
    return (f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}") + unit


def summary(moment: Moment) -> str:
    """One line: job, verdict, stall or the reason of its absence, tier, best advice."""
    verdict = moment.verdict
    parts = [name(moment.job, 40), headline(verdict)]
    if verdict.reason and (verdict.stall is None or not verdict.bound.sure):
        parts.append(plain(verdict.reason))
    elif verdict.stall is not None:
        parts.append(stall_text(verdict.stall))
    parts.append(f"tier {verdict.tier.value}")
    if verdict.advice:
        parts.append("; ".join(change(verdict.advice[0])) or plain(verdict.advice[0].text))
    elif texts := [evidence.text for evidence in verdict.evidence if evidence.name in _IN_SUMMARY]:
        parts.append(plain(texts[0]))
    return " · ".join(parts)
