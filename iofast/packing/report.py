"""The result of `pack`, the JSON that `iofast pack --json` prints, and the list of images that could not be packed."""

import contextlib
import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from iofast import owned
from iofast.bars import html_table
from iofast.containers.publish import Target
from iofast.errors import ContainerError, ErrorBudgetError, TargetError
from iofast.record import format_key

VERSION = 2  # of the JSON; increased only if a field changes its meaning or is removed
ERRORS = ".errors.jsonl"  # the suffix of the list, beside the container


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate from transcoding `sample` images. Sizes are in bytes, `seconds` on this machine now.

    `bytes_peak` is the most disk space in use at one time; `bytes_free` is the free space of the target's file system.
    """

    sample: int
    bytes_out: int
    seconds: float
    bytes_peak: int
    bytes_free: int


@dataclass(frozen=True, slots=True)
class PackReport:
    """What `pack` did with the images of `source`.

    `packed` + `failed` + `left_out` = `images`, unless `estimate` is set: then nothing was written, and `failed` and
    `left_out` count images of the sample. `min_size` and `max_aspect` do not admit `left_out` images. `unlabelled` of
    the images have no label. `bytes_in` is the size of the source's image files, `bytes_out` that of the container. An
    interrupted run had done `resumed` of the images already. `errors` counts failed images by cause; `errors_file`
    lists them. `notes` mention other files in the source. `part` is (i, n) if only that part was packed; the parts
    `missing` are not finished.
    """

    source: str
    target: str
    images: int
    packed: int
    failed: int
    classes: int | None
    unlabelled: int
    splits: Mapping[str, int]
    bytes_in: int
    bytes_out: int
    seconds: float
    workers: int
    resumed: int = 0
    left_out: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    errors_file: str | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()
    estimate: Estimate | None = None

    def __repr__(self) -> str:
        """The target and the counts that are not 0, on one line."""
        if self.estimate is not None:
            nbytes, seconds = self.estimate.bytes_out, self.estimate.seconds
            return f"PackReport({self.target!r}: {self.images:,} images, about {nbytes:,} bytes in {seconds:.0f} s)"
        named = [(name, getattr(self, name)) for name in ("failed", "left_out", "resumed", "unlabelled")]
        counts = [
            f"{self.packed:,} of {self.images:,} images",
            *(f"{count:,} {name}" for name, count in named if count),
        ]
        missing = [f"{len(self.missing):,} parts missing"] if self.missing else []
        counts += [*missing, f"{self.bytes_out:,} bytes in {self.seconds:.1f} s"]
        return f"PackReport({self.target!r}: {', '.join(counts)})"

    def _repr_html_(self) -> str:
        """In a notebook: a table of the members that are not empty."""
        return html_table(self)

    @property
    def images_per_second(self) -> float:
        """Images per second of this run, without those of an interrupted one."""
        done = self.packed + self.failed + self.left_out - self.resumed
        return done / self.seconds if self.seconds > 0 else 0.0

    @property
    def status(self) -> int:
        """The exit status of `iofast pack`: 0, or 3 if some images failed."""
        return 3 if self.failed else 0

    @property
    def next_step(self) -> str:
        """What to do with the container, in one line; empty if there is none yet."""
        if self.estimate is not None or self.part is not None:
            return ""
        split = "train" if "train" in self.splits else next(iter(self.splits), "all")
        flag, keyword = ("", "") if split == "all" else (f" --split {split}", f", split={split!r}")
        return f"FastDataset({self.target!r}{keyword}) in Python; iofast bench {shlex.quote(self.target)}{flag}"

    def to_json(self) -> str:
        """One line of JSON: the members, `images_per_second`, `status`, and `version`, which a new meaning raises."""
        value = {"version": VERSION, **asdict(self), "images_per_second": self.images_per_second, "status": self.status}
        return json.dumps(value, sort_keys=True)


def published(target: Target, files: Mapping[str, str], report: PackReport) -> PackReport:
    """Publish the staged `files` and return their report, which the marker keeps for a later run."""
    report = replace(report, bytes_out=sum(map(_size, (target.partial / staged for staged in files))))
    target.publish(files, asdict(report))
    return report


def completed(target: Target, started: float) -> PackReport:
    """Finish the publication of an earlier run, and return its report. Raises `ContainerError`."""
    members, where = target.complete(), target.path
    try:
        given = (members or {}).items()
        every: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given}
        report = PackReport(**every)
    except TypeError:
        raise ContainerError(f"{where} is published, but its marker had no report of a pack") from None
    return replace(report, seconds=time.monotonic() - started, resumed=report.images)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


class FailedImages:
    """The failures of the run that packs the container at `path`, at most `allowed` of its `images`."""

    def __init__(self, images: int, allowed: int, path: Path) -> None:
        self.allowed, self._images, self._path = allowed, images, path
        self.file = beside(path, ERRORS)
        self._found: dict[int, tuple[str, str]] = {}  # position -> path as `printable` gives it, reason

    def __len__(self) -> int:
        return len(self._found)

    def add(self, position: int, path: str, reason: str) -> None:
        """Count one. Raises `ErrorBudgetError` above the budget, after writing the file."""
        self._found[position] = path, reason
        if len(self._found) > self.allowed:
            self.save()
            raise ErrorBudgetError(
                f"{len(self._found):,} of {self._images:,} images failed: expected at most {self.allowed:,}, found "
                f"{path!r}: {reason} (all are listed in {self.file})"
            )

    def load(self) -> None:
        """Load the list that a finished run has saved."""
        for value in read_lines(self.file):
            self._found[value["key"]] = str(value.get("path")), str(value.get("reason"))

    def causes(self) -> Mapping[str, int]:
        """Numbers of failed images by cause (the reason without details in brackets), most frequent first."""
        return dict(Counter(reason.split(" (", 1)[0] for _, (_, reason) in sorted(self._found.items())).most_common())

    def save(self) -> Path | None:
        """Replace the file by one JSON object per failed image, in packing order; return it. Without any, remove it.

        It is drafted in the run's folder, which a killed run leaves anyway. Raises `TargetError`.
        """
        try:
            if not self._found:
                self.file.unlink(missing_ok=True)
                return None
            with owned.writing(self.file, drafts=beside(self._path, ".partial")) as draft:
                for position, (path, reason) in sorted(self._found.items()):
                    line = {"key": format_key(position), "path": path, "reason": reason}
                    draft.write(json.dumps(line).encode("ascii") + b"\n")
        except OSError as error:
            raise TargetError(f"the list {self.file} cannot be written: {error.strerror or error}") from error
        return self.file


def beside(path: Path, suffix: str) -> Path:
    """The file beside a container whose name ends in `suffix`."""
    return path.with_name(path.name + suffix)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of `FailedImages.save`, `key` as a number. Other lines are ignored."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            value = json.loads(line)
            yield {**value, "key": int(value["key"])}
