"""CSV: one row per interval of a job."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from typing import TextIO

from iofast.monitor.render.escape import cell
from iofast.monitor.render.figures import NAMES
from iofast.monitor.render.moment import Moment, MomentView

_JUDGED = ("time", "pid", "rank", "command", "verdict", "cause", "severity", "tier", "stall_low", "stall_high")
_WAITS = ("waits_at", "waits_for", "waits_share")
COLUMNS = (*_JUDGED, *_WAITS, *(f"interval_{name}" for name in NAMES), "advice")


class CsvRows(MomentView):
    """Writes a header and rows into `out`, and closes it at the end unless `keep_open`."""

    def __init__(self, out: TextIO, *, keep_open: bool) -> None:
        self._out, self._keep_open = out, keep_open
        self._rows = csv.writer(out, lineterminator="\n")
        self._rows.writerow(COLUMNS)
        out.flush()

    def update(self, moment: Moment) -> None:
        """Write a row; a value that is not available is an empty cell."""
        verdict, now, site = moment.verdict, moment.figures, moment.verdict.waits
        row = [
            f"{time.time():.3f}",
            moment.job.pid,
            moment.job.rank,
            cell(moment.job.command),
            verdict.bound.value,
            "" if verdict.cause is None else verdict.cause.value,
            verdict.severity.value,
            verdict.tier.value,
            None if verdict.stall is None else _short(verdict.stall.low),
            None if verdict.stall is None else _short(verdict.stall.high),
            *(
                ("", "", None)
                if site is None
                else (cell(f"{site.file}:{site.line}"), cell(site.call), _short(site.share))
            ),
            *(_short(getattr(now, name)) for name in NAMES),
            cell(verdict.advice[0].text) if verdict.advice else "",
        ]
        self._rows.writerow(row)
        self._out.flush()

    def close(self, _moments: Sequence[Moment]) -> None:
        """Close the file."""
        if not self._keep_open:
            self._out.close()


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"
