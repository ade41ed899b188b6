"""Options, each stated once: a field of a frozen dataclass with its default, description, choices and limits.

Keyword arguments, docstrings, `--help` and the tables in the documentation are derived from these fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field, fields
from typing import Any

_WIDTH = 120  # columns of a docstring
_NAME = 22  # columns of an option's name in it


def option(
    default: Any,
    text: str,
    *,
    choices: tuple[object, ...] = (),
    limits: tuple[int, int] | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Any:
    """A field that is an option.

    `text` describes it in a phrase, `choices` are its possible values, `limits` the least and the largest integer, and
    `metadata` is for the caller's own use.
    """
    about = {"text": text, "choices": choices, "limits": limits, **(metadata or {})}
    return field(default=default, metadata=about)


def options_of(groups: Iterable[type]) -> list[Field[Any]]:
    """The options of dataclasses, in order."""
    return [each for group in groups for each in fields(group) if "text" in each.metadata]


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
