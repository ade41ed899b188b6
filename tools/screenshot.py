"""Draw a terminal's screen as a PNG, as docs/monitor.md shows it.

tmux new-session -d -s shot -x 80 -y 24 'iofast monitor'
tmux capture-pane -t shot -e -p | python -m tools.screenshot docs/images/monitor-80x24.png --columns 80
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

THEME = TerminalTheme(
    (24, 27, 31),
    (214, 219, 224),
    [
        *((24, 27, 31), (224, 92, 92), (126, 186, 96), (219, 176, 76)),
        *((97, 150, 214), (190, 130, 200), (92, 178, 196), (214, 219, 224)),
    ],
)
MARGIN = 12  # pixels round the screen
SIZE = 16  # of the letters, pixels
_EIGHTHS = " ▁▂▃▄▅▆▇█"  # fonts leave gaps between these: they are drawn as what they are
_DIM = 0.55  # of the way from the background to a colour
_FONTS = ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf")

Colour = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


class Cell(NamedTuple):
    """A character, how many columns it takes, and its two colours."""

    character: str
    columns: int
    front: Colour
    back: Colour
    bold: bool


def cells(line: str) -> Iterator[Cell]:
    """The characters of a line with escape sequences, from left to right."""
    plain = Style.null()
    for segment in Text.from_ansi(line).render(Console(width=1000, color_system="truecolor")):
        style = segment.style or plain
        front, back = _colour(style.color, THEME.foreground_color), _colour(style.bgcolor, THEME.background_color)
        if style.reverse:
            front, back = back, front
        if style.dim:
            front = _between(back, front)
        for character in segment.text:
            yield Cell(character, cell_len(character), front, back, bool(style.bold))


def screenshot(lines: Sequence[str], columns: int, fonts: tuple[Font, Font]) -> Image.Image:
    """A picture of `lines`, which may have escape sequences for colours, `columns` wide, in a plain and a bold font."""
    wide, high = round(fonts[0].getlength("M")), round(SIZE * 1.3)
    picture = Image.new("RGB", (2 * MARGIN + columns * wide, 2 * MARGIN + len(lines) * high), THEME.background_color)
    draw = ImageDraw.Draw(picture)
    for row, line in enumerate(lines):
        column = 0
        for cell in cells(line):
            left, top = MARGIN + column * wide, MARGIN + row * high
            right, bottom = left + cell.columns * wide - 1, top + high - 1
            draw.rectangle((left, top, right, bottom), cell.back)
            if (eighths := _EIGHTHS.find(cell.character)) > 0:
                draw.rectangle((left, bottom + 1 - round(high * eighths / 8), right, bottom), cell.front)
            elif cell.character.strip():
                draw.text((left, top + 1), cell.character, cell.front, fonts[cell.bold])
            column += cell.columns
    return picture


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw a terminal's screen, read from standard input, as a PNG.")
    parser.add_argument("target", type=Path, metavar="PNG")
    parser.add_argument("--columns", type=int, default=80)
    args = parser.parse_args()
    plain, bold = (ImageFont.truetype(name, SIZE) for name in _FONTS)
    picture = screenshot(sys.stdin.read().rstrip("\n").split("\n"), args.columns, (plain, bold))
    picture.quantize(64).save(args.target, optimize=True)
    return 0


def _colour(color: Color | None, default: Colour) -> Colour:
    return default if color is None or color.is_default else tuple(color.get_truecolor(THEME))


def _between(low: Colour, high: Colour) -> Colour:
    mixed = [round(a + _DIM * (b - a)) for a, b in zip(low, high, strict=True)]
    return mixed[0], mixed[1], mixed[2]


if __name__ == "__main__":
    sys.exit(main())
