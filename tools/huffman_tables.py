"""Generate iofast/kernel/src/huffman.h: Huffman tables for photographs, from photographs.

python -m tools.huffman_tables PHOTOS > iofast/kernel/src/huffman.h

Every JPEG in the folder PHOTOS is packed once for each band of qualities, its symbols are counted, and each band gets
the tables that need the fewest bits. Every symbol of a baseline JPEG gets a code. On stderr: the cost of tables trained
on every second photograph for the others, beside tables trained on those themselves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from iofast import kernel
from iofast.kernel.contract import TranscodeRecipe
from tools.jpeg_symbols import read

BANDS = {59: (30, 50), 82: (60, 70, 75, 80), 93: (85, 90, 90, 92), 100: (95, 98, 100)}  # upper quality: trained with
SIZES = (256, 256, 128, 512)  # pixels of the short side, in turn
KINDS = ("DC luma", "AC luma", "DC chroma", "AC chroma")
DC = tuple(range(12))
AC = (*(run << 4 | size for run in range(16) for size in range(1, 11)), 0x00, 0xF0)
SYMBOLS = (DC, AC, DC, AC)
LONGEST = 16  # bits; 14 cost 0.1 % more bytes, 12 cost 0.6 %
UNSEEN = 1e-7  # share of a symbol that no photograph had

Counts = NDArray[np.float64]  # (4, 256)


def code_lengths(weights: Sequence[float], longest: int = LONGEST) -> list[int]:
    """The lengths of the best prefix code for symbols of these weights, none longer than `longest`: package-merge."""
    single = sorted((weight, (number,)) for number, weight in enumerate(weights))
    row: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(longest):
        pairs = zip(row[::2], row[1::2], strict=False)
        row = sorted(single + [(a[0] + b[0], a[1] + b[1]) for a, b in pairs], key=lambda entry: entry[0])
    lengths = [0] * len(weights)
    for _, numbers in row[: 2 * len(weights) - 2]:
        for number in numbers:
            lengths[number] += 1
    return lengths


def table(counts: NDArray[np.float64], symbols: Sequence[int]) -> dict[int, int]:
    """Code length of each symbol. A weightless symbol takes the code of ones, which the standard reserves."""
    share = counts / counts.sum()
    lengths = code_lengths([*(max(float(share[symbol]), UNSEEN) for symbol in symbols), 0.0])
    return dict(zip(symbols, lengths, strict=False))


def count(photographs: Sequence[bytes], qualities: Sequence[int]) -> list[Counts]:
    """The symbols of each photograph, packed with one of `qualities` and one of the sizes, as shares of them all."""
    found = []
    for number, data in enumerate(tqdm(photographs, disable=not sys.stderr.isatty())):
        pair = number // 2  # alike in both halves, of which one may be held out
        quality, size = qualities[pair % len(qualities)], SIZES[pair // len(qualities) % len(SIZES)]
        recipe = TranscodeRecipe(size=size, mode="short", quality=quality, restart="auto")
        image = read(kernel.transcode(data, recipe).data)
        counts = np.zeros((4, 256))
        for (kind, which), made in image.tables.items():
            counts[2 * which + kind] = made.counts
        found.append(counts / counts.sum())
    return found


def bits(counts: Counts, tables: Sequence[dict[int, int]]) -> float:
    """Bits of the codes of `counts`, without the bits that follow each code."""
    return sum(float(counts[k][symbol]) * length for k in range(4) for symbol, length in tables[k].items())


def train(counts: Sequence[Counts]) -> list[dict[int, int]]:
    """The four tables for images of these symbols."""
    total = np.sum(counts, axis=0)
    return [table(total[k], SYMBOLS[k]) for k in range(4)]


def initialiser(lengths: dict[int, int]) -> Iterator[str]:
    """A JHUFF_TBL in C: how many codes of each length, and the symbols from the shortest code to the longest."""
    numbers = [0, *(sum(length == n for length in lengths.values()) for n in range(1, LONGEST + 1))]
    yield "{.bits = {" + ", ".join(map(str, numbers)) + "},"
    values = [str(symbol) for symbol, _ in sorted(lengths.items(), key=lambda item: (item[1], item[0]))]
    for start in range(0, len(values), 18):
        end = start + 18 >= len(values)
        line = ", ".join(values[start : start + 18])
        yield (" .huffval = {" if start == 0 else "              ") + line + ("}}," if end else ",")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder of JPEGs")
    files = sorted(path for path in parser.parse_args().photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    photographs = [path.read_bytes() for path in files]
    print("/* Made by tools/huffman_tables.py, not edited: tables for photographs, by the quality of the encoding. */")
    print(f"#define IOF_BANDS {len(BANDS)}")
    print(f"static const int BAND_TOP[IOF_BANDS] = {{{', '.join(map(str, BANDS))}}}; /* the highest quality of each */")
    print("static const JHUFF_TBL PHOTOGRAPHS[IOF_BANDS][4] = {")
    for top, qualities in BANDS.items():
        counts = count(photographs, qualities)
        seen, unseen = counts[::2], counts[1::2]
        cost = bits(np.sum(unseen, axis=0), train(seen)) / bits(np.sum(unseen, axis=0), train(unseen))
        print(f"quality to {top}: {cost - 1:+.2%} bits of codes for photographs not trained on", file=sys.stderr)
        print("    {")
        for name, lengths in zip(KINDS, train(counts), strict=True):
            print(f"        /* to quality {top}: {name} */")
            print("\n".join("        " + line for line in initialiser(lengths)))
        print("    },")
    print("};")
    return 0


if __name__ == "__main__":
    sys.exit(main())
