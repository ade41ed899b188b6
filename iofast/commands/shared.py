"""What all commands share: options, wrong usage in one line with a suggestion, and output, which no name can break."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from iofast.errors import OptionError, because, did_you_mean, plain
from iofast.option import options_of

if TYPE_CHECKING:
    from rich.table import Table

# `max_errors=3` as in Python, and words that can only be names (`max_errors`), but not in paths or quotes
_KEYWORD = re.compile(r"""(?<![\w./'"=,-])([a-z][a-z_]*)(=True\b|=|(?![\w./=-]))""")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_KINDS: dict[Any, dict[str, Any]] = {  # by the type of an option; the class of the options parses other values
    bool: {"action": "store_true"},
    int: {"type": int},
    int | None: {"type": int},
    tuple[int, ...]: {"type": int, "action": "append"},
    tuple[str, str] | None: {"nargs": 2},
    float: {"type": float},
    float | None: {"type": float},
    Literal["auto", "off"]: {"action": "store_const", "const": "off"},
}


def add_option(group: argparse._ActionsContainer, each: Field[Any], **more: Any) -> None:
    """Add an option that is a field of a dataclass (`option.option`), with `more` arguments of `add_argument`."""
    about, kind = each.metadata, _KINDS.get(each.type, {})
    flag = about.get("flag") or f"--{each.name.replace('_', '-')}"
    more |= {"metavar": about["metavar"]} if about["metavar"] else {}
    group.add_argument(flag, dest=each.name, help=about["text"].replace("%", "%%"), **kind, **more)


def given(args: argparse.Namespace, groups: Iterable[type]) -> dict[str, Any]:
    """The values of those options of dataclasses that were given."""
    return {each.name: getattr(args, each.name) for each in options_of(groups) if hasattr(args, each.name)}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with errors of one line, and with examples in its help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        start, _, words = message.partition("unrecognized arguments: ")
        shards = [word for word in words.split() if os.path.isfile(word) and ".t" in os.path.basename(word)]
        if not start and shards:
            message += ": put a pattern of shards into quotes, or the shell expands it"
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def check_options(self, words: Sequence[str]) -> None:
        """Exit with a suggestion if one of the words is an unknown option.

        argparse would report a missing argument first, or take the option's value for an argument.
        """
        known = self._option_string_actions
        has_program = any(action.nargs == argparse.REMAINDER for action in self._actions)
        rest = iter(words)
        for word in rest:
            if word == "--" or (has_program and not word.startswith("-")):
                return
            name, equals, _ = word.partition("=")
            if not word.startswith("--"):
                continue
            matches = [name] if name in known else [option for option in known if option.startswith(name)]
            if not matches:
                self.error(f"unknown option {name}{did_you_mean(name, known)}")
            if not equals and known[matches[0]].nargs is None:
                next(rest, None)  # the option's value

    def check_paths(self, args: argparse.Namespace) -> None:
        """Exit with an error if an argument is empty: as a path it would be the current folder."""
        for action in self._get_positional_actions():
            value = getattr(args, action.dest, None)
            if "" in (value if isinstance(value, list) else [value]):
                self.error(f"{action.metavar} is empty: expected a path, found ''")

    def typed(self, message: str, *, leading: bool = False) -> str:
        """Replace Python keywords in a message by this command's options: --max-errors 3 for `max_errors=3`.

        With `leading`, the first word may be a keyword without `=`.
        """
        options = {action.dest: action.option_strings[-1] for action in self._actions if action.option_strings}

        def as_typed(match: re.Match[str]) -> str:
            name, end = match[1], match[2]
            if name not in options or not (end or "_" in name or (leading and not match.start())):
                return match[0]
            has_value = end == "=" and message[match.end() : match.end() + 1] not in ("", *" ,;:.)")
            return options[name] + " " * has_value

        return _KEYWORD.sub(as_typed, message)


def refuse_beside(args: argparse.Namespace, one: str, others: Sequence[str]) -> None:
    """Raise `OptionError` if one of `others` was given beside `one`, where it has no effect."""
    used = [name for name in others if getattr(args, name) is not None and getattr(args, name) is not False]
    if getattr(args, one) is not None and used:
        raise OptionError(f"{used[0]}= has no effect: expected none beside {one}=, found both; leave one of them out")


def add_output(group: argparse._ActionsContainer, facts: str = "print JSON", quiet: str = "print nothing") -> None:
    """Add `--json` and `--quiet`, with their help."""
    for flag, text in (("--json", facts), ("--quiet", quiet)):
        group.add_argument(flag, action="store_true", default=False, help=text)


def add_foreign(group: argparse._ActionsContainer) -> None:
    """Add `--names` and `--labels-from`, the meaning of another program's files."""
    group.add_argument(
        "--names",
        metavar="OURS=THEIRS,…",
        default=None,
        help="names in another program's files: image=photo,label=json/category,seg.png=mask/encoded",
    )
    group.add_argument(
        "--labels-from",
        type=int,
        choices=(0, 1),
        metavar="N",
        default=None,
        help="the number of its first class: 1 if 0 means background, as in ImageNet's TFRecords (default 0)",
    )


def foreign_given(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """Return the options for `open_reader`, None if there are none. Raises `OptionError`."""
    options: dict[str, Any] = {}
    if args.names is not None:
        pairs = [[word.strip() for word in pair.partition("=")] for pair in args.names.split(",")]
        if not all(ours and theirs for ours, _, theirs in pairs) or len({ours for ours, _, _ in pairs}) < len(pairs):
            raise OptionError(f"names must be pairs with commas, as in image=photo,label=class, found {args.names!r}")
        options["names"] = {ours: theirs for ours, _, theirs in pairs}
    if args.labels_from is not None:
        options["label_base"] = args.labels_from
    return options or None


def answer(args: argparse.Namespace, facts: Mapping[str, Any], show: Callable[[], object]) -> None:
    """Print `facts` as JSON, let `show` print them as text, or do nothing, as `--json` and `--quiet` say."""
    if args.json:
        print(json.dumps({"version": 1, **facts}))
    elif not args.quiet:
        show()


def say(*lines: object, on_stderr: bool = False) -> None:
    """Print each value on a line of its own, without control characters."""
    for line in lines:
        print(plain(str(line)), file=sys.stderr if on_stderr else sys.stdout)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int]) -> "Table":
    """Return a table without lines. The columns `right` are aligned right; markup in cells is shown as it is."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number in right:
        table.columns[number].justify = "right"
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def size(bytes_: float) -> str:
    """Return a size with three digits and a decimal unit: 14.2 MB."""
    value, unit = float(bytes_), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Return a time: 0.414 s, 12.3 s, 03:20, 2:05:00."""
    from tqdm import tqdm

    return f"{seconds:.3g} s" if seconds < 60 else tqdm.format_interval(seconds)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 image, 1,200 images."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def cannot_start(command: str, program: str, error: OSError) -> int:
    """Print why a program cannot be started, and return the exit status that a shell would have."""
    print(f"iofast {command}: error: cannot start {program!a}: {because(error)}", file=sys.stderr)
    return 127 if isinstance(error, FileNotFoundError) else 126
