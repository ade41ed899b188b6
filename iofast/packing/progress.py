"""Progress of a packing run: none, or a bar."""

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
    """Show only warnings, as Python warnings. Used for `pack(progress=False)`."""

    def warn(self, text: str) -> None:
        """Warn about the source."""
        warnings.warn(text, UserWarning, stacklevel=5)  # the caller of `pack`

    def begin(self, images: int, done: int) -> None:
        """Begin with `images`, of which an earlier run has done `done`."""

    def step(self, images: int, size: int, failed: int) -> None:
        """Advance by `images` whose files have `size` bytes; `failed`: failures so far."""

    def end(self) -> None:
        """End; called once, also after an error."""


class PackBar(PackProgress):
    """A bar on stderr, in a terminal or notebook, with images/s, MB/s and the time left. It vanishes at the end."""

    def __init__(self, *, visible: bool = True) -> None:
        self.visible = visible and can_show()
        self._bar: tqdm[NoReturn] | None = None
        self._bytes = 0

    def begin(self, images: int, done: int) -> None:
        if self.visible:
            self._bar = open_bar(images, " images", initial=done)

    def step(self, images: int, size: int, failed: int) -> None:
        if self._bar is None:
            return
        self._bytes += size
        elapsed = self._bar.format_dict["elapsed"]
        rate = f"{self._bytes / 1e6 / elapsed:.1f} MB/s" if elapsed > 0 else ""
        self._bar.set_postfix_str(f"{rate}, {failed} failed" if failed else rate, refresh=False)
        self._bar.update(images)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()


class Bar(PackBar):
    """The bar of a command, whose warnings are lines on stderr.

    `typed` rewrites the names of options in a warning as they are on a command line.
    """

    def __init__(self, name: str, *, visible: bool = True, typed: Callable[[str], str] = str) -> None:
        super().__init__(visible=visible)
        self._name, self._typed = name, typed

    def warn(self, text: str) -> None:
        print(f"{self._name}: warning: {plain(self._typed(text))}", file=sys.stderr)  # noqa: T201 - the command's own output
