"""Write the odd images into a folder, or the table of them into a document."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.odd_images import every, groups, write
from tools.odd_images.scene import Odd

_HEAD = """\
# Odd images

What `iofast pack` does with awkward and broken files. `python -m tools.odd_images FOLDER` writes them all. The test
`test_odd_images.py` packs them and compares each result with the expected pixels. The same list gives this page:
`python -m tools.odd_images --table docs/odd-images.md`.

"Packed" means: encoded upright, in sRGB, as a viewer shows it, with 64 × 48 pixels if nothing else is said
([the rules](pack.md)).
"Fails" means: `DST.errors.jsonl` gets a line with the file's name and a reason that contains these words, and all other
images are packed. With `--format keep` the same files fail.
"""

_USUAL = 64, 48  # width, height


def table() -> str:
    """The document."""
    lines = [_HEAD]
    for name, group in groups().items():
        lines += [f"## {name}", "", "| file | what it is | outcome |", "|---|---|---|"]
        lines += [f"| {_name(odd)} | {odd.about.replace('|', chr(92) + '|')} | {_outcome(odd)} |" for odd in group]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _name(odd: Odd) -> str:
    text = repr(odd.name.decode("utf-8", "backslashreplace"))[1:-1].replace("|", "\\|").replace("\\\\x", "\\x")
    text = text if len(text) < 40 else f"{text[:12]}…{text[-8:]}"
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _outcome(odd: Odd) -> str:
    if odd.pixels is not None:
        height, width = odd.pixels.shape[:2]
        return "packed" if (width, height) == _USUAL else f"packed, {width} × {height}"
    return f"fails: {odd.error or 'damaged'}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make awkward and broken images, or the table of them.")
    parser.add_argument("folder", type=Path, nargs="?", help="where to write the images")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table instead")
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
