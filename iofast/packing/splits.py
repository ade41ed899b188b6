"""`--split val=0.1,test=0.05`: divide images into splits by a hash of their paths."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from iofast.containers.manifest import WHOLE, check_split_name
from iofast.errors import ContainerError, OptionError, SourceError
from iofast.source.arrays import stable_order
from iofast.source.listing import Listing, few, ranges, split_rank

REST = "train"  # the split of images that no share takes

Shares = Mapping[str, float]


def parse_shares(value: str | Shares) -> dict[str, float]:
    """Split -> share of all images, from `val=0.1,test=0.05` or a mapping. Raises `OptionError`."""
    try:
        texts = () if isinstance(value, Mapping) else value.split(",")
        pairs: list[Any] = list(value.items()) if isinstance(value, Mapping) else [text.split("=", 1) for text in texts]
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
        found = ", ".join(names)
        raise OptionError(f"split: expected names other than {REST!r} (the rest) and {WHOLE!r}, found {found!r}")
    if not all(math.isfinite(share) and share > 0 for share in shares.values()) or sum(shares.values()) >= 1:
        raise OptionError(f"the shares of split must be above 0 and leave something for {REST!r}, found {value!r}")
    return shares


def written(shares: Shares) -> str:
    """Shares as canonical text."""
    return ",".join(f"{name}={share!r}" for name, share in sorted(shares.items()))


def divide(source: Listing, shares: Shares, seed: int) -> Listing:
    """The same images in splits. Raises `SourceError` if they are in splits already.

    Each image gets a number in [0, 1): the first eight bytes of the SHA-256 of "iofast/split/<seed>/<path>", over 2^64.
    The shares, sorted by name, take intervals from 0 upwards; `train` takes the rest. So the split of an image depends
    only on its own path.
    """
    if [name for name, _, _ in source.splits] != [WHOLE]:
        found = few(name for name, _, _ in source.splits)
        raise SourceError(f"{source.root} has splits already ({found}), so split= cannot divide it")
    names = [*sorted(shares), REST]
    ends = np.cumsum([shares[name] for name in names[:-1]])
    prefix = hashlib.sha256(f"iofast/split/{seed}/".encode())
    ranked = sorted(names, key=split_rank)
    ranks = np.array([ranked.index(name) for name in names], np.int32)
    draws = []
    for path in source.paths:
        digest = prefix.copy()
        digest.update(path)
        draws.append(int.from_bytes(digest.digest()[:8], "big") / 2.0**64)
    counts, order = stable_order(ranks[np.searchsorted(ends, draws, side="right")], len(names))
    unused = [name for name, count in zip(ranked, counts, strict=True) if not count]
    warnings = (f"splits without an image: {few(unused)}",) if unused else ()
    return replace(
        source,
        splits=ranges((name, count) for name, count in zip(ranked, counts, strict=True) if count),
        order=order,
        warnings=(*source.warnings, *warnings),
    )
