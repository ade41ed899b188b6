"""`--split val=0.1,test=0.05`: which images make up a split, by the content of their paths."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from iofast.containers.manifest import WHOLE, check_split_name
from iofast.errors import ContainerError, OptionError, SourceError
from iofast.source import Source
from iofast.source.listing import few, ranges, split_rank

REST = "train"  # where the images go that no share takes

Shares = Mapping[str, float]


def parse_shares(value: str | Shares) -> dict[str, float]:
    """Split -> share of all images, from `val=0.1,test=0.05` or a mapping. Raises `OptionError`."""
    try:
        pairs: list[tuple[str, Any]] = (
            list(value.items()) if isinstance(value, Mapping) else [_pair(part) for part in value.split(",")]
        )
        names = [check_split_name(name.strip()) for name, _ in pairs]
        shares = {name: float(share) for name, (_, share) in zip(names, pairs, strict=True)}
    except ContainerError as error:
        raise OptionError(f"split: {error}") from None
    except (TypeError, ValueError, AttributeError):
        raise OptionError(f"split must be names with shares, as in val=0.1,test=0.05, found {value!r}") from None
    if len(shares) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError(f"split names {twice!r} twice: expected each name once, found {value!r}")
    if not shares or {REST, WHOLE} & set(shares):
        given = ", ".join(names)
        raise OptionError(f"split needs names beside {REST!r}, the rest, and {WHOLE!r}, all of them; found {given!r}")
    if not all(math.isfinite(share) and share > 0 for share in shares.values()) or sum(shares.values()) >= 1:
        raise OptionError(f"the shares of split must be above 0 and leave something for {REST!r}, found {value!r}")
    return shares


def _pair(text: str) -> tuple[str, str]:
    name, share = text.split("=", 1)
    return name, share


def written(shares: Shares) -> str:
    """Shares as one text, always the same for the same shares."""
    return ",".join(f"{name}={share!r}" for name, share in sorted(shares.items()))


def divide(source: Source, shares: Shares, seed: int) -> Source:
    """The same images in splits. Raises `SourceError` where they are in splits already.

    An image's lot is the first eight bytes of the SHA-256 of "iofast/split/<seed>/<path>", over 2^64: shares in the
    order of their names take 0 … 1 from below, what is left is `train`. So it depends on nothing but its own path.
    """
    if [name for name, _, _ in source.splits] != [WHOLE]:
        there = few(name for name, _, _ in source.splits)
        raise SourceError(f"{source.root} has splits already ({there}), so split= cannot divide it")
    names = [*sorted(shares), REST]
    ends = np.cumsum([shares[name] for name in names[:-1]])
    prefix = hashlib.sha256(f"iofast/split/{seed}/".encode())
    lots = np.empty(len(source), np.float64)
    for row, path in enumerate(source.paths):
        digest = prefix.copy()
        digest.update(path)
        lots[row] = int.from_bytes(digest.digest()[:8], "big") / 2.0**64
    ranked = sorted(names, key=split_rank)
    number = np.array([ranked.index(name) for name in names])[np.searchsorted(ends, lots, side="right")]
    counts = np.bincount(number, minlength=len(names)).tolist()
    empty = [name for name, count in zip(ranked, counts, strict=True) if not count]
    warnings = (f"splits that got no image: {few(empty)}",) if empty else ()
    return replace(
        source,
        splits=ranges((name, count) for name, count in zip(ranked, counts, strict=True) if count),
        order=np.argsort(number, kind="stable").astype(np.int64),
        warnings=(*source.warnings, *warnings),
    )
