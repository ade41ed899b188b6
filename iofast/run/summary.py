"""The report of a run: what its processes noted, as lines for a terminal and as JSON."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

VERSION = 1  # of the JSON

_FLAGS = ("I", "E", "S")  # of Python: ignore the environment, or start without `site`
_MOST = 5  # lines of the script that are named


def collect(folder: Path) -> list[dict[str, Any]]:
    """Read what each process noted; one that was killed while it wrote has its last whole file."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):
            found.append(json.loads(path.read_text()))
    return found


def deaf(program: Sequence[str]) -> str | None:
    """Return the option of Python in a command line that makes it ignore PYTHONPATH, or None."""
    if not program or not os.path.basename(program[0]).startswith("python"):
        return None
    for word in program[1:]:
        if not word.startswith("-") or word in ("-c", "-m", "-"):
            return None
        if not word.startswith("--") and any(flag in word for flag in _FLAGS):
            return word
    return None


def report(program: Sequence[str], status: int, processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the report as JSON types."""
    counts, nanoseconds, whole, left = Counter[str](), Counter[str](), Counter[str](), dict[str, str]()
    untested = set[str]()
    for each in processes:
        counts.update(each.get("counts", {}))  # a process that was killed at once has nothing
        nanoseconds.update(each.get("nanoseconds", {}))
        whole.update(each.get("decoded_whole_by_line", {}))
        left |= each.get("left_alone", {})
        untested.update(each.get("untested", []))
    return {
        "version": VERSION,
        "program": list(program),
        "exit_status": status,
        "ignores_environment": deaf(program),
        "images": dict(counts),
        "ms_per_image": _milliseconds(counts, nanoseconds),
        "loaders": _loaders(processes),
        "decoded_whole_by_line": dict(whole.most_common(_MOST)),
        "left_alone": left,
        "untested": sorted(untested),
        "processes": processes,
    }


def _milliseconds(counts: Counter[str], nanoseconds: Counter[str]) -> dict[str, float]:
    """Return the time of decoding, cropping, resizing and arithmetic, by the script's libraries and by iofast."""
    found = {}
    for name, what, number in (
        ("libraries", "shadow", "timed"),
        ("iofast", "decoding for the loop", "decoded for the loop"),
    ):
        if counts[number]:
            found[name] = round(nanoseconds[what] / counts[number] / 1e6, 3)
    return found


def _loaders(processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the loops over DataLoaders, those of one name as one, with images a second and waits."""
    own, found = {each["pid"]: each for each in processes if "pid" in each}, dict[str, list[dict[str, Any]]]()
    for process in own.values():
        for name, loop in process["loaders"].items():
            found.setdefault(name, []).append(loop)
    return [_loader(name, loops, own) for name, loops in found.items()]


def _loader(name: str, loops: list[dict[str, Any]], processes: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return one loop, of one process or of several ranks.

    Before: no worker makes an image faster than Pillow and torch made the checked ones, and the step is as long as now.
    """
    first = loops[0]
    facts = {"name": name, **{fact: first[fact] for fact in ("workers", "batch_size", "shuffled", "folder")}}
    facts["decoded"], images, time, waited = (
        sum(loop[fact] for loop in loops) for fact in ("decoded", "images", "nanoseconds", "waited")
    )
    if not images:
        return facts
    facts["now"] = {"images_per_s": round(len(loops) * images / time * 1e9), "wait": round(waited / time, 3)}
    makers = [processes[pid] for loop in loops for pid in loop["processes"] if pid in processes]
    timed = sum(each["counts"].get("timed", 0) for each in makers)
    if timed and (shadow := sum(each["nanoseconds"].get("shadow", 0) for each in makers)):
        step, image = (time - waited) / images, shadow / timed
        period = image / facts["workers"] if facts["workers"] else image + step
        rate, wait = len(loops) * 1e9 / period, max(0.0, 1 - step / period)
        facts["before"] = {"images_per_s_at_most": round(rate), "wait_at_least": round(wait, 3)}
    return facts


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the report for a terminal."""
    images, processes = facts["images"], facts["processes"]
    if not processes:
        why = f"its option {facts['ignores_environment']} ignores PYTHONPATH" if facts["ignores_environment"] else (
            "it starts no Python, or one without PYTHONPATH"
        )  # fmt: skip
        return [f"no process of {facts['program'][0]} reported to iofast: {why}; nothing was changed"]
    if not images.get("lazy"):
        return [
            f"{_several(len(processes), 'process', 'processes')} ran; no JPEG was opened by Pillow that iofast decodes",
            *_left(facts),
        ]
    found = [
        f"{images['lazy']:,} JPEGs in {_several(len(processes), 'process', 'processes')}; left to Pillow: "
        f"{images.get('left to Pillow', 0):,}",
        f"decoded in batches beside the loop: {images.get('decoded for the loop', 0):,}; in workers, only the needed "
        f"part: {images.get('part', 0):,}, as a whole: {images.get('whole', 0):,}",
        f"checked against Pillow and torch: {images.get('checked', 0):,}; different: {images.get('differences', 0):,}",
    ]
    times = facts["ms_per_image"]
    if len(times) == 2:
        found.append(
            f"decode, crop, resize and arithmetic of an image: {times['libraries']} ms of a processor by Pillow and "
            f"torch (checked images), {times['iofast']} ms by iofast's threads"
        )
    found += [f"{line} needs whole images: {number:,}" for line, number in facts["decoded_whole_by_line"].items()]
    if facts["untested"]:
        found.append(f"not tested with {', '.join(facts['untested'])}: twice as many images were checked")
    for loader in facts["loaders"]:
        found += _rates(loader)
    if images.get("decoded for the loop") and not images.get("differences"):
        found += _fast_loader(max(facts["loaders"], key=lambda each: each["decoded"]))
    return found + _left(facts)


def _rates(loader: dict[str, Any]) -> list[str]:
    if "now" not in loader:
        return []
    now, before = loader["now"], loader.get("before")
    found = [f"{loader['name']}: {now['images_per_s']:,} images/s, the loop waits {now['wait']:.0%} of the time"]
    if before:
        found[0] += (
            f"; before, by the checked images: at most {before['images_per_s_at_most']:,} images/s, waiting at least "
            f"{before['wait_at_least']:.0%}"
        )
    return found


def _fast_loader(loader: dict[str, Any]) -> list[str]:
    """Return the lines with which a DataLoader becomes a FastLoader."""
    options = "shuffle=True, transform=T.train(224)" if loader["shuffled"] else "transform=T.evaluate(224)"
    return [
        f"{loader['name']} could be a FastLoader: faster still, without worker processes, with crops of its own:",
        f"    iofast pack {shlex.quote(loader['folder'] or 'FOLDER')} out.lmdb --resize 256",
        "    from iofast import FastDataset, FastLoader, transforms as T",
        f"    loader = FastLoader(FastDataset('out.lmdb'), {loader['batch_size']}, {options})",
    ]


def _left(facts: dict[str, Any]) -> list[str]:
    return [f"left alone: {what}: {why}" for what, why in facts["left_alone"].items()]


def _several(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
