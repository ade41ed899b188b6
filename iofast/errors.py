"""The errors of iofast.

Each class also inherits the builtin that fits. A message is one line: what is wrong, what was expected, what was found,
and where (file, key, offset).
"""

from __future__ import annotations

import errno
from collections.abc import Collection

LONGEST = 2000  # characters of a message: a name in a hostile file may have a million


def because(error: OSError) -> str:
    """Return the system's description of an error, for the middle of a message."""
    words = error.strerror or str(error)
    return "the disk is full" if error.errno == errno.ENOSPC else words[:1].lower() + words[1:]


def plain(text: str) -> str:
    """Return `text` on one line, with unprintable characters escaped, so that no terminal obeys them."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def one_line(text: str) -> str:
    """Return `text` as by `plain`, shortened to `LONGEST` characters."""
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[len(text) - LONGEST // 4 :]}"


def reason_of(error: BaseException) -> str:
    """Return the first line of another library's error, or its class's name if it has no text."""
    text = str(error)
    return text.splitlines()[0] if text else type(error).__name__


def shown(value: object, most: int = 80) -> str:
    """Return `repr(value)` on one line of at most `most` characters."""
    try:
        words = " ".join(repr(value).split())
    except Exception:  # `repr()` may fail; still produce a message
        words = f"<{type(value).__name__}>"
    return words if len(words) <= most else f"{words[: most - 1]}…"


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return `: did you mean …?` if `word` resembles a known one, else nothing."""
    import difflib  # imported for mistyped words only

    close = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {close[0]}?" if close else ""


class IofastError(Exception):
    """The base of iofast's errors. Its text is always one printable line."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class OptionError(IofastError, ValueError):
    """An option, or a combination of options, that cannot be carried out."""


class SourceError(IofastError, ValueError):
    """A source is missing, empty or not understood."""


class SourceMissingError(SourceError, FileNotFoundError):
    """A source does not exist."""


def unreadable(path: object, error: OSError) -> SourceError:
    """Return the error for a `path` that the system cannot read."""
    if isinstance(error, FileNotFoundError):
        return SourceMissingError(f"{path} does not exist")
    return SourceError(f"{path} cannot be read: {because(error)}")


class TargetError(IofastError, OSError):
    """A target cannot be written: it exists, is locked by another run, is not writable, or the disk is full."""


class BusyError(TargetError):
    """Another run is writing the target now."""


class ContainerError(IofastError, ValueError):
    """A container's bytes contradict its format."""


class UnfinishedError(ContainerError):
    """The container was never finished: it has no manifest, or its `.partial` folder is still there."""


class DecodeError(IofastError, ValueError):
    """An image cannot be decoded."""


class ErrorBudgetError(IofastError, RuntimeError):
    """More images failed than `max_errors` allows."""


class StorageError(IofastError, OSError):
    """An object store cannot be reached, refuses access or answers wrongly: the storage is at fault, not a sample."""

    was_patient = False  # whether the request was tried again until the patience ended

    def again(self) -> StorageError:
        """A copy, for another thread that meets the same failure."""
        error = type(self)(str(self))
        error.was_patient = self.was_patient
        return error


class ObjectMissingError(IofastError, FileNotFoundError):
    """An object does not exist."""


class ObjectConflictError(IofastError, FileExistsError):
    """An object is not as a request requires: it has changed, or exists already."""


class StateError(IofastError, ValueError):
    """A loader cannot resume from this state or would lose its place, or a process is a fork and must not go on."""


class LibraryMissingError(IofastError, ImportError):
    """A library that is needed is not installed."""


class BatchSizeError(IofastError, MemoryError):
    """The images of a batch, by the sizes in the index, need more memory than there is."""


class WorkerError(IofastError, RuntimeError):
    """A worker thread or process ended before its work was done."""
