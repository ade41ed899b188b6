"""Progress and warnings of a packing run, or of a verification."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from iofast.bars import can_show, open_bar
from iofast.errors import plain

if TYPE_CHECKING:
    from tqdm import tqdm


class PackProgress:
    """Warnings, and if `visible` a bar on stderr, in a terminal or notebook, with images/s, MB/s and the time left.

    Warnings are Python's; with the `name` of a command they are lines on stderr, in which `typed` rewrites the names of
    options as they are on a command line.
    """

    def __init__(self, *, visible: bool = False, name: str = "", typed: Callable[[str], str] = str) -> None:
        self.visible = visible and can_show()
        self._name, self._typed = name, typed
        self._bar: tqdm[NoReturn] | None = None
        self._bytes = 0

    def warn(self, text: str) -> None:
        """Warn about the source."""
        if self._name:
            print(f"{self._name}: warning: {plain(self._typed(text))}", file=sys.stderr)  # noqa: T201 - of the command
        else:
            warnings.warn(text, UserWarning, stacklevel=6)  # the caller of `pack`

    def begin(self, images: int, done: int = 0) -> None:
        """Begin with `images`, of which an earlier run has done `done`."""
        if self.visible:
            self._bar = open_bar(images, " images", initial=done)

    def step(self, images: int, size: int, failed: int) -> None:
        """Advance by `images` whose files have `size` bytes; `failed`: failures so far."""
        if self._bar is None:
            return
        self._bytes += size
        elapsed = self._bar.format_dict["elapsed"]
        rate = f"{self._bytes / 1e6 / elapsed:.1f} MB/s" if elapsed > 0 else ""
        self._bar.set_postfix_str(f"{rate}, {failed} failed" if failed else rate, refresh=False)
        self._bar.update(images)

    def end(self) -> None:
        """End; called once, also after an error."""
        if self._bar is not None:
            self._bar.close()
