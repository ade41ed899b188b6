"""Run command lines in this process, perhaps on a terminal."""

import io
import json
import shlex
from typing import Any, NamedTuple

import pytest

from iofast.cli import main


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Ran(NamedTuple):
    """Exit status, standard output and standard error of a command line."""

    status: int
    out: str
    err: str

    @property
    def facts(self) -> Any:
        """The JSON on standard output of a successful command."""
        assert self.status == 0, self.err
        return json.loads(self.out)

    def fails(self, status: int, *words: str) -> None:
        """Assert an exit status, and one line on standard error that contains `words`."""
        assert (self.status, self.out, self.err.count("\n")) == (status, "", 1), self
        assert self.err.startswith("iofast")
        assert ": error: " in self.err
        assert all(word in self.err for word in words), self.err


class CommandLine:
    """Called with the words of a command line."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> Ran:
        self._capsys.readouterr()
        try:
            status = main([str(word) for word in words])
        except SystemExit as ended:  # argparse ends the process
            status = int(ended.code or 0)
        return Ran(status, *self._capsys.readouterr())


def type_in(shell: str) -> None:
    """Run the `iofast` commands of a document's shell block."""
    for line in shell.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "iofast", line
            assert main(words[1:]) == 0, line
