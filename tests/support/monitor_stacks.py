"""Stacks and sources for the tests of what stacks say, written as text."""

from __future__ import annotations

from collections.abc import Mapping

from iofast.monitor.probe.calls import Call, Stack, Text, parse
from iofast.monitor.probe.feeds import Feeds
from iofast.monitor.probe.loops import Loops


def stack(text: str) -> Stack:
    """Of calls, the outermost first. ~ is a site-packages folder and ^ the standard library's."""
    text = text.replace("~", "/v/lib/python3.11/site-packages/").replace("^", "/usr/lib/python3.11/")
    (found,) = parse(f"thread (7): MainThread;{text} 1\n")
    return found


def at(line: str = "") -> Text:
    """Every line of the user's code reads so."""
    return lambda call: line if call.user else ""


def lines(files: Mapping[str, str]) -> Text:
    """The lines of these files, by path."""

    def text(call: Call) -> str:
        found = files.get(call.path, "").split("\n")
        return found[call.line - 1] if 0 < call.line <= len(found) else ""

    return text


def knowing(files: Mapping[str, str] | None = None) -> Feeds:
    """What is known of a program with these files before anything was seen of it."""
    files = files or {}
    return Feeds(lines(files), lambda call: Loops(files.get(call.path, "")))
