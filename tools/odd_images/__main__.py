"""Write the odd images into a folder, or the list of them into a document."""

import argparse
import sys
from pathlib import Path

from tools.odd_images import every, groups, write
from tools.odd_images.scene import Odd

_HEAD = """\
# Odd images

What `iofast pack` does with awkward and broken files. `python -m tools.odd_images FOLDER` writes them, and
`test_odd_images.py` compares each result with the expected pixels.

Packed images are upright, in sRGB, as a viewer shows them ([the rules](pack.md)); of those that are packed this page
lists the files that leave a choice. "Fails" means: `DST.errors.jsonl` gets a line with the file's name and a reason
that contains these words, and all other images are packed. With `--format keep` the same files fail.
"""


def table() -> str:
    """The document."""
    lines = [_HEAD]
    for name, group in groups().items():
        listed = [odd for odd in group if odd.pixels is None or ": " in odd.about]  # behind the colon: what is done
        lines += [f"## {name}", ""] if listed else []
        for outcome in dict.fromkeys(map(_outcome, listed)):
            lines += [f"{outcome}:", "", *(f"- {odd.about}" for odd in listed if _outcome(odd) == outcome), ""]
    return "\n".join(lines).rstrip() + "\n"


def _outcome(odd: Odd) -> str:
    return "Packed" if odd.pixels is not None else f'Fails, "{odd.error or "damaged"}"'


def main() -> int:
    parser = argparse.ArgumentParser(description="Make awkward and broken images, or the list of them.")
    parser.add_argument("folder", type=Path, nargs="?", help="where to write the images")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the list instead")
    args = parser.parse_args()
    if args.table:
        args.table.write_text(table())
    elif args.folder:
        write(args.folder)
        print(f"{len(every())} files in {args.folder}")
    else:
        parser.error("a folder, or --table FILE")
    return 0


if __name__ == "__main__":
    sys.exit(main())
