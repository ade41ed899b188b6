"""Options, each stated once: a field of a frozen dataclass with its default, description, choices and limits.

Keyword arguments, docstrings, `--help` and the tables in the documentation are derived from these fields.
"""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, field, fields
from typing import Any, TypeVar, cast

from iofast.errors import OptionError, did_you_mean

# Defaults of packing and of the kernel's recipe: here, because the command line shows them without importing NumPy.
FILTER, QUALITY, SUBSAMPLING, REDUCING_GAP = "bilinear", 90, "420", 2.0
MOST_PIXELS = 1 << 28  # 268 million; three times Pillow's bomb warning, enough for 16,000 x 16,000
MOST_MEMORY = 1 << 31  # bytes for packing one image: enough for 16,000 x 16,000 pixels in RGB, not in RGBA

CLASS_ORDERS = ("lexicographic", "natural", "file")

_WIDTH = 120  # columns of a docstring
_NAME = 22  # columns of an option's name in it
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.ASCII | re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_Function = TypeVar("_Function", bound=Callable[..., None])


def option(
    default: Any,
    text: str = "",
    *,
    choices: tuple[object, ...] = (),
    limits: tuple[int, int] | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Any:
    """A field that is an option.

    `text` describes it in a phrase, unless a docstring does. `choices` are its possible values, `limits` the least and
    the largest integer, and `metadata` is for the caller's own use.
    """
    about = {"text": text, "choices": choices, "limits": limits, **(metadata or {})}
    return field(default=default, metadata=about)


def flag(default: Any, text: str, metavar: str | None = None, *, usual: object = None, typed: bool = True) -> Any:
    """An option of a command. `metavar` is its value in --help; without `typed` it is not on the command line.

    `usual` is the value that applies without the option. Its field is None then, so that an option without effect can
    be told from one that was not given.
    """
    text = text if usual is None else f"{text} (default {usual})"
    return option(default, text, metadata={"metavar": metavar, "typed": typed})


def options_of(groups: Iterable[type]) -> list[Field[Any]]:
    """The options of dataclasses, in order."""
    return [each for group in groups for each in fields(group) if "text" in each.metadata]


def check_names(function: str, options: type, named: Iterable[str], instead: Mapping[str, str] | None = None) -> None:
    """Raise `OptionError` for the first of `named` that `options` lacks; `instead` has the advice for some names."""
    _check_known(function, [each.name for each in fields(options)], named, f"see {options.__name__}", instead)


def names_checked(initialise: _Function) -> _Function:
    """Make an `__init__` raise `OptionError`, with the nearest name, for a keyword that it lacks."""
    known = list(inspect.signature(initialise).parameters)[1:]

    @functools.wraps(initialise)  # so that the signature stays
    def checked(self: Any, *arguments: Any, **keywords: Any) -> None:
        _check_known(type(self).__name__, known, keywords, f"expected {', '.join(known)}")
        initialise(self, *arguments, **keywords)

    return cast("_Function", checked)


def _check_known(
    function: str, known: Sequence[str], named: Iterable[str], see: str, instead: Mapping[str, str] | None = None
) -> None:
    for name in named:
        if name not in known:
            advice = f": {instead[name]}" if instead and name in instead else did_you_mean(name, known)
            raise OptionError(f"{name} is not an option of {function}{advice or f': {see}'}")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise `OptionError` for a value that is none of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{name} must be one of {', '.join(choices)}, found {value!r}")


def check_effect(option: str, has_effect: bool, expected: str, found: str) -> None:
    """Raise `OptionError` for an option, as `name=value`, that has no effect beside what was found."""
    if not has_effect:
        raise OptionError(f"{option} has no effect: expected {expected}, found {found}; leave it out")


def described(*groups: type) -> str:
    """A paragraph for each option, for the docstring of a class."""
    import textwrap  # 1 ms that the start of a command need not take

    lines = []
    for each in options_of(groups):
        indent = " " * (4 + _NAME)
        text = textwrap.wrap(each.metadata["text"], _WIDTH - len(indent))
        lines += [f"    {each.name:<{_NAME}}{text[0]}", *(indent + line for line in text[1:])]
    return "\n".join(lines)


def takes_options(options: Callable[..., object], function: Callable[..., Any]) -> Any:
    """Replace *args and **kwargs in the signature of `function` by the parameters of `options`, for `help()`."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    own = inspect.signature(function)
    parameters = [each for each in own.parameters.values() if each.kind not in variable]
    parameters += inspect.signature(options).parameters.values()
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def parse_size(value: int | str, option: str = "shard_size") -> int:
    """Bytes, from a number or a text such as 500MB, 1GB, 1.5GiB. Raises `OptionError`."""
    found = _SIZE.fullmatch(str(value).strip()) if len(str(value)) < 32 else None
    if found is None or isinstance(value, bool):
        raise OptionError(
            f"{option} must be a number of bytes, or one with a unit such as 500MB or 1GiB, found {value!r:.40}"
        )
    size = round(float(found[1]) * float(1024 if found[3] else 1000) ** _POWERS[found[2].lower()])
    if not 1 <= size < 1 << 62:
        raise OptionError(f"{option} must be above 0 and below 2^62 bytes, found {value!r}")
    return size
