"""Every error iofast raises on purpose.

Each class also inherits the builtin that a caller who has never heard of iofast would catch. A message is one line:
what is wrong, what was expected, what was found, and where (file, key, offset).
"""

from __future__ import annotations

import errno

LONGEST = 2000  # characters of a message: a name in a file that was made to harm may have a million


def because(error: OSError) -> str:
    """What the system says of an error, for the middle of a message."""
    return "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error)).lower()


def plain(text: str) -> str:
    """`text` on one line, with nothing in it that a terminal would obey: what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def one_line(text: str) -> str:
    """`text` as a terminal can show it, in up to `LONGEST` characters: what is not printable is escaped."""
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[len(text) - LONGEST // 4 :]}"


def reason_of(error: BaseException) -> str:
    """The first line of another library's error, or its class's name where it says nothing."""
    text = str(error)
    return text.splitlines()[0] if text else type(error).__name__


def shown(value: object, most: int = 80) -> str:
    """`value` for a message, in one line of at most `most` characters: arrays are told in as many lines as rows."""
    try:
        words = " ".join(repr(value).split())
    except Exception:  # whatever an option is, the message is to say that it is none
        words = f"<{type(value).__name__}>"
    return words if len(words) <= most else f"{words[: most - 1]}…"


class IofastError(Exception):
    """The parent of every error iofast raises on purpose. Its text is one line, whatever the names in it."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class OptionError(IofastError, ValueError):
    """An option, or a combination of options, that cannot be carried out."""


class SourceError(IofastError, ValueError):
    """What was to be packed or read is missing, empty or not understood."""


class TargetError(IofastError, OSError):
    """A target cannot be written: it exists, is locked by another run, is not writable, or the disk is full."""


class ContainerError(IofastError, ValueError):
    """A container's bytes contradict its format."""


class UnfinishedError(ContainerError):
    """The container was never finished: it has no manifest, or its `.partial` folder is still there."""


class DecodeError(IofastError, ValueError):
    """An image cannot be decoded."""


class ErrorBudgetError(IofastError, RuntimeError):
    """More images failed than `max_errors` allows."""


class StateError(IofastError, ValueError):
    """A loader cannot go on from this state, or would lose its place."""


class WorkerError(IofastError, RuntimeError):
    """A worker thread or process ended before its work was done."""
