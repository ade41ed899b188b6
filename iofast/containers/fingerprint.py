"""The fingerprint of a container: a SHA-256 of keys, fields, lengths and checksums (docs/format.md 2.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns import FieldPlaces

_ROW = np.dtype([("position", "<u8"), ("length", "<u4"), ("crc", "<u4")])


class Fingerprint:
    """The fingerprint of the records added so far, whose keys have `key_width` digits."""

    def __init__(self, key_width: int) -> None:
        self._width = key_width
        self._fields: dict[str, Any] = {}  # SHA-256 of each field's rows

    def add(self, position: NDArray[np.uint64], fields: Mapping[str, FieldPlaces]) -> None:
        """Add the records at these positions, (N,). `fields` have columns of N rows."""
        for name, own in fields.items():
            rows = np.empty(int(own.there.sum()), _ROW)
            rows["position"], rows["length"], rows["crc"] = (
                column[own.there] for column in (position, own.length, own.crc)
            )
            if len(rows):
                self._fields.setdefault(name, hashlib.sha256()).update(rows)

    def __str__(self) -> str:
        whole = hashlib.sha256(bytes([self._width]))
        for name, own in sorted(self._fields.items()):
            whole.update(bytes([len(name)]) + name.encode() + own.digest())
        return f"sha256:{whole.hexdigest()}"
