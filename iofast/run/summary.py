"""The report of a run: what its processes noted, as lines for a terminal and as JSON."""

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
    """Return the report as JSON types. `processes`: the attributes of `notes.Notes` of each."""
    counts, nanoseconds, whole = (
        sum((Counter(each[name]) for each in processes), Counter[str]())
        for name in ("counts", "nanoseconds", "decoded_whole_by_line")
    )
    times = {}
    if counts["timed"]:
        times["libraries"] = round(nanoseconds["shadow"] / counts["timed"] / 1e6, 3)
    if counts["decoded for the loop"]:
        times["iofast"] = round(nanoseconds["decoding for the loop"] / counts["decoded for the loop"] / 1e6, 3)
    loops = [(name, loop) for each in processes for name, loop in each["loaders"].items()]
    return {
        "version": VERSION,
        "program": list(program),
        "exit_status": status,
        "ignores_environment": deaf(program),
        "images": dict(counts),
        "ms_per_image": times,  # decoding, cropping, resizing and arithmetic
        "loaders": [_loader(name, [loop for other, loop in loops if other == name], processes) for name in dict(loops)],
        "decoded_whole_by_line": dict(whole.most_common(_MOST)),
        "left_alone": {what: why for each in processes for what, why in each["left_alone"].items()},
        "untested": sorted({library for each in processes for library in each["untested"]}),
        "processes": processes,
    }


def _loader(name: str, loops: list[dict[str, Any]], processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the loops at one line of the script as one, with images a second and waits.

    Before: no worker makes an image faster than Pillow and torch made the checked ones, and the step is as long as now.
    """
    facts = {"name": name, **{fact: loops[0][fact] for fact in ("workers", "batch_size", "shuffled", "folder")}}
    facts["decoded"], images, time, waited = (
        sum(loop[fact] for loop in loops) for fact in ("decoded", "images", "nanoseconds", "waited")
    )
    if not images:
        return facts
    ranks = _at_once(loops)
    facts["now"] = {"images_per_s": round(ranks * images / time * 1e9), "wait": round(waited / time, 3)}
    own = {pid for loop in loops for pid in loop["processes"]}
    makers = [each for each in processes if each["pid"] in own]
    timed = sum(each["counts"].get("timed", 0) for each in makers)
    if timed and (shadow := sum(each["nanoseconds"].get("shadow", 0) for each in makers)):
        step, image = (time - waited) / images, shadow / timed
        period = image / facts["workers"] if facts["workers"] else image + step
        rate, wait = ranks * 1e9 / period, max(0.0, 1 - step / period)
        facts["before"] = {"images_per_s_at_most": round(rate), "wait_at_least": round(wait, 3)}
    return facts


def _at_once(loops: list[dict[str, Any]]) -> float:
    """Return how many loops ran at the same time, on average: ranks did, runs one after the other did not."""
    total = covered = end = 0
    for begun, ended in sorted((loop["begun"], loop["ended"]) for loop in loops if loop["images"]):
        total += ended - begun
        covered += max(0, ended - max(begun, end))
        end = max(end, ended)
    return total / covered


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the report for a terminal."""
    images, processes, times = facts["images"], len(facts["processes"]), facts["ms_per_image"]
    several = f"{processes:,} {'process' if processes == 1 else 'processes'}"
    left = [f"left alone: {what}: {why}" for what, why in facts["left_alone"].items()]
    if not processes:
        why = "it starts no Python, or one without PYTHONPATH"
        if facts["ignores_environment"]:
            why = f"its option {facts['ignores_environment']} ignores PYTHONPATH"
        return [f"no process of {facts['program'][0]} reported to iofast: {why}; nothing was changed"]
    if not images.get("lazy"):
        return [f"{several} ran; no JPEG was opened by Pillow that iofast decodes", *left]
    found = [
        f"{images['lazy']:,} JPEGs in {several}; left to Pillow: {images.get('left to Pillow', 0):,}",
        f"decoded in batches beside the loop: {images.get('decoded for the loop', 0):,}; where the script uses them, "
        f"only the needed part: {images.get('part', 0):,}, as a whole: {images.get('whole', 0):,}",
        f"checked against Pillow and torch: {images.get('checked', 0):,}; different: {images.get('differences', 0):,}",
    ]
    if len(times) == 2:
        found.append(
            f"decode, crop, resize and arithmetic of an image: {times['libraries']} ms of a processor by Pillow and "
            f"torch (checked images), {times['iofast']} ms by iofast's threads"
        )
    found += [f"{line} needs whole images: {number:,}" for line, number in facts["decoded_whole_by_line"].items()]
    if facts["untested"]:
        found.append(f"not tested with {', '.join(facts['untested'])}: twice as many images were checked")
    found += [_rates(loader) for loader in facts["loaders"] if "now" in loader]
    folders = [each for each in facts["loaders"] if each["folder"] and each["decoded"]]
    if folders and not images.get("differences"):
        found += _fast_loader(max(folders, key=lambda each: each["decoded"]))
    return found + left


def _rates(loader: dict[str, Any]) -> str:
    now, before = loader["now"], loader.get("before")
    line = f"{loader['name']}: {now['images_per_s']:,} images/s, the loop waits {now['wait']:.0%} of the time"
    return line if before is None else (
        f"{line}; before, by the checked images: at most {before['images_per_s_at_most']:,} images/s, waiting at least "
        f"{before['wait_at_least']:.0%}"
    )  # fmt: skip


def _fast_loader(loader: dict[str, Any]) -> list[str]:
    """Return the lines with which a DataLoader becomes a FastLoader."""
    options = "shuffle=True, transform=T.train(224)" if loader["shuffled"] else "transform=T.evaluate(224)"
    return [
        f"{loader['name']} could be a FastLoader: faster still, without worker processes, with crops of its own:",
        f"    iofast pack {shlex.quote(loader['folder'])} out.lmdb --resize 256",
        "    from iofast import FastDataset, FastLoader, transforms as T",
        f"    loader = FastLoader(FastDataset('out.lmdb'), {loader['batch_size']}, {options})",
    ]
