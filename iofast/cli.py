"""The command line `iofast`: finds the command, and turns errors into one line and an exit status (_EPILOG)."""

import argparse
import codecs
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from iofast.commands import COMMANDS
from iofast.commands.shared import Parser
from iofast.errors import IofastError, OptionError, did_you_mean, plain
from iofast.version import __version__

_EPILOG = """\
examples:
  iofast pack ./images out.lmdb --resize 256     pack a folder of images into one file
  iofast pack ./images out.lmdb --dry-run        estimate its size and time, without writing
  iofast info out.lmdb                           show its contents
  iofast verify out.lmdb                         check it, and list damaged records
  iofast convert out.lmdb train.tar              copy its records into tar shards
  iofast bench out.lmdb                          measure how fast it loads here, by stage
  iofast monitor                                 watch your trainings: does one wait for data?
  iofast monitor -- python train.py              start a training and watch it
  iofast doctor                                  show what is installed here, and what is missing

`iofast COMMAND --help` explains a command with examples.
Exit status: 0 done, 1 failed, 2 wrong usage, 3 done but some images failed, 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's), and return the exit status."""
    _replace_unencodable()
    arguments = list(sys.argv[1:] if argv is None else argv)
    at = next((at for at, argument in enumerate(arguments) if not argument.startswith("-")), len(arguments))
    try:
        parser, own = _parsers(arguments[at] if at < len(arguments) else None)
    except KeyboardInterrupt:  # while the command's module and its libraries are imported
        print("iofast: interrupted", file=sys.stderr)
        return 130
    parser.check_options(arguments[:at])
    own.check_options(arguments[at + 1 :])
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        own.error(f"unrecognized arguments: {' '.join(unknown)}")
    own.check_paths(args)
    if args.command is None:
        parser.print_help()
        return 2
    try:
        status: int = args.run(args)
        print(end="", flush=True)  # raises here if the pipe is closed; stdout may be None in a daemon
        return status
    except BrokenPipeError:  # `iofast info out.lmdb | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as interrupt:
        _say(args, own.typed(str(interrupt)) or "interrupted", interrupt)
        return 130
    except (IofastError, OSError) as error:
        words = own.typed(_words(error), leading=isinstance(error, OptionError))
        _say(args, f"error: {words}", error)
        return 2 if isinstance(error, OptionError) else 1


def _parsers(command: str | None) -> tuple[Parser, Parser]:
    """Return the top parser and that of a command; without one the top parser twice."""
    parser = Parser(
        prog="iofast",
        description="Pack images into one fast file, and train from it as fast as the machine decodes.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"iofast {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    parsers = {name: commands.add_parser(name, help=text) for name, text in COMMANDS.items()}
    if command is None:
        return parser, parser
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS) or f": the commands are {', '.join(COMMANDS)}"
        parser.error(f"unknown command {command!r}{hint}")
    own, module = parsers[command], import_module(f"iofast.commands.{command}")
    about, _, own.epilog = (module.__doc__ or "").partition("\n\n")
    own.description = " ".join(about.split())
    module.add_options(own)
    own.add_argument(
        "--debug", action="store_true", default=False, help="show the traceback of an error (also IOFAST_DEBUG=1)"
    )
    own.set_defaults(run=module.run, typed=own.typed)
    return parser, own


def _replace_unencodable() -> None:
    """Let stdout and stderr replace characters that their encoding lacks, instead of raising."""
    codecs.register_error("iofast", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="iofast")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ASCII.get(each) or ascii(each)[1:-1] for each in missing), error.end


_ASCII = {"…": "...", "–": "-", "×": "x", "→": "->", "µ": "u", "█": "#", **dict.fromkeys("▏▎▍▌▋▊▉", "|")}


def _words(error: Exception) -> str:
    """Return an error's message on one line; of a system error without its number and brackets."""
    if isinstance(error, OSError) and not isinstance(error, IofastError) and error.strerror:
        return ": ".join(filter(None, (str(error.filename or ""), error.strerror.lower())))
    return " ".join(str(error).split("\n"))


def _say(args: argparse.Namespace, message: str, error: BaseException) -> None:
    if args.debug or os.environ.get("IOFAST_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    print(f"iofast {args.command}: {plain(message)}", file=sys.stderr)
