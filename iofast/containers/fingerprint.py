"""The fingerprint of a container: SHA-256 of the keys, names, lengths and checksums of all payloads (format.md 2.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns import FieldPlaces


class Fingerprint:
    """The fingerprint of the records added so far, whose keys have `key_width` digits."""

    def __init__(self, key_width: int) -> None:
        self._hash, self._width = hashlib.sha256(), key_width

    def add(self, position: NDArray[np.uint64], fields: Mapping[str, FieldPlaces]) -> None:
        """Add the records at these positions, (N,). `fields` are sorted by name, with columns of N rows.

        Records with the same fields are hashed as one table, since their texts have one length.
        """
        if not len(position) or not fields:
            return
        there = np.packbits([own.there for own in fields.values()], axis=0).T
        _, first, kind = np.unique(there, axis=0, return_index=True, return_inverse=True)
        kind, texts = kind.reshape(-1), []
        for number, row in enumerate(first.tolist()):
            rows = np.flatnonzero(kind == number)
            own = {name: places for name, places in fields.items() if places.there[row]}
            texts.append((rows, self._text(position[rows], own, rows)))
        sizes = np.array([text.shape[1] for _, text in texts])[kind]
        starts = np.cumsum(sizes) - sizes
        data = np.empty(sizes.sum(), np.uint8)
        for rows, text in texts:
            data[starts[rows][:, None] + np.arange(text.shape[1])] = text
        self._hash.update(data.data)

    def _text(
        self, position: NDArray[np.uint64], fields: Mapping[str, FieldPlaces], rows: NDArray[np.intp]
    ) -> NDArray[np.uint8]:
        """What is hashed of the records in these rows, which have all of `fields`: uint8, a row for each."""
        digits = np.uint64(10) ** np.arange(self._width - 1, -1, -1, dtype=np.uint64)
        key = (position[:, None] // digits % np.uint64(10)).astype(np.uint8) + np.uint8(ord("0"))
        columns = [np.zeros((len(rows), 0), np.uint8)]
        for name, own in fields.items():
            names = _each(bytes([len(name)]) + name.encode(), len(rows))
            sums = _bytes(own.length[rows]), _bytes(own.crc[rows])
            columns += [_each(bytes([self._width]), len(rows)), key, names, *sums]
        return np.concatenate(columns, axis=1)

    def __str__(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _each(text: bytes, count: int) -> NDArray[np.uint8]:
    return np.tile(np.frombuffer(text, np.uint8), (count, 1))


def _bytes(numbers: NDArray[np.uint64] | NDArray[np.uint32]) -> NDArray[np.uint8]:
    return numbers.astype("<u4")[:, None].view(np.uint8)
