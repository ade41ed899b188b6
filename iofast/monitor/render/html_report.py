"""One HTML page about all watched jobs, with the lines of layout.py: no network, no scripts, light and dark."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from iofast import owned
from iofast.errors import TargetError, because
from iofast.monitor.render import wording
from iofast.monitor.render.layout import WIDTH, Lines, whole
from iofast.monitor.render.moment import Moment, MomentView

# The browser loads and runs nothing. A dark page is the light one with its brightness inverted.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>iofast monitor</title><style>{stylesheet}
html {{ background: {background}; color: {foreground}; }}
pre {{ font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }}
@media (prefers-color-scheme: dark) {{ html {{ filter: invert(0.9) hue-rotate(180deg); }} }}
</style></head><body><pre>{code}</pre></body></html>
"""


class PageReport(MomentView):
    """Writes the page when watching ends. Raises TargetError at the start if the path is not writable."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        folder = self._path.parent
        if self._path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise TargetError(f"--report cannot write {path}: expected a file in a writable folder")

    def close(self, moments: Sequence[Moment]) -> None:
        """Write the page to a temporary name and rename it."""
        try:
            with owned.writing(self._path) as file:
                file.write(html(moments, datetime.now(UTC)).encode())
        except OSError as error:
            raise TargetError(f"--report cannot write {self._path}: {because(error)}") from error


def html(moments: Sequence[Moment], when: datetime) -> str:
    """The page."""
    console = Console(file=StringIO(), record=True, width=WIDTH, highlight=False, markup=False, emoji=False)
    date = when.strftime("%Y-%m-%d %H:%M UTC")
    console.print(Text.assemble(("Is this training waiting for its data?", "bold"), f"  iofast monitor, {date}"))
    jobs = [line for moment in moments for line in _job(moment)]
    for line in jobs or [Text("No training process was seen.")]:
        console.print(line, soft_wrap=True)
    return console.export_html(code_format=_PAGE)


def _job(moment: Moment) -> Lines:
    history = moment.history
    watched = f"watched for {wording.clock(history.seconds)} in {history.intervals:,} intervals"
    return [Text(f"\n{watched}", "dim"), *whole(moment)]
