"""Command lines: wrong usage is one line that names what was probably meant, and messages name options as typed."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Sequence
from typing import NoReturn

from iofast.errors import OptionError

# `max_errors=3` as Python's callers write it, and words that can only be names: `max_errors`; not in paths or quotes
_KEYWORD = re.compile(r"""(?<![\w./'"=,-])([a-z][a-z_]*)(=True\b|=|(?![\w./=-]))""")


class Parser(argparse.ArgumentParser):
    """argparse's, whose errors are one line as every other error is."""

    def error(self, message: str) -> NoReturn:
        start, _, words = message.partition("unrecognized arguments: ")
        shards = [word for word in words.split() if os.path.isfile(word) and ".t" in os.path.basename(word)]
        if not start and shards:
            message += ": a pattern of shards goes into quotes, or the shell makes many names of it"
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def check_options(self, words: Sequence[str]) -> None:
        """End with a suggestion if one of the words is an option that this command does not have.

        argparse would first miss an argument, or take the value of the option for one.
        """
        known = self._option_string_actions
        others_follow = any(action.nargs == argparse.REMAINDER for action in self._actions)
        rest = iter(words)
        for word in rest:
            if word == "--" or (others_follow and not word.startswith("-")):
                return
            name, equals, _ = word.partition("=")
            if not word.startswith("--"):
                continue
            matches = [name] if name in known else [option for option in known if option.startswith(name)]
            if not matches:
                self.error(f"unknown option {name}{did_you_mean(name, known)}")
            if not equals and known[matches[0]].nargs is None:
                next(rest, None)  # its value

    def check_paths(self, args: argparse.Namespace) -> None:
        """End with an error if an argument is empty: as a path, it would be the current folder."""
        for action in self._get_positional_actions():
            found = getattr(args, action.dest, None)
            if "" in (found if isinstance(found, list) else [found]):
                self.error(f"{action.metavar} is empty: expected a path, found ''")

    def typed(self, message: str, *, leading: bool = False) -> str:
        """A message with this command's options as they are typed: --max-errors 3 for `max_errors=3`.

        `leading`: the first word is the name of an option, if it is that of one.
        """
        options = {action.dest: action.option_strings[-1] for action in self._actions if action.option_strings}

        def as_typed(found: re.Match[str]) -> str:
            name, end = found[1], found[2]
            if name not in options or not (end or "_" in name or (leading and not found.start())):
                return found[0]
            has_value = end == "=" and message[found.end() : found.end() + 1] not in ("", *" ,;:.)")
            return options[name] + " " * has_value

        return _KEYWORD.sub(as_typed, message)


def refuse_beside(args: argparse.Namespace, one: str, others: Sequence[str]) -> None:
    """Raise `OptionError` for an option of `others` that was given beside `one`, which leaves it without effect."""
    given = [name for name in others if getattr(args, name) is not None and getattr(args, name) is not False]
    if getattr(args, one) is not None and given:
        raise OptionError(f"{given[0]}= has no effect: expected none beside {one}=, found both; leave one of them out")


def did_you_mean(word: str, known: Collection[str]) -> str:
    """`: did you mean …?` for a word that is like one of the known ones, else nothing."""
    import difflib  # only a mistyped word pays for it

    close = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {close[0]}?" if close else ""
