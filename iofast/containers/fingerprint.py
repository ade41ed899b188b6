"""The fingerprint of a container: a SHA-256 of keys, fields, lengths and checksums (docs/format.md 2.2)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from iofast.containers.columns import NOWHERE, columns_of, fields_in
from iofast.containers.columns_file import Arrays

_ROW = np.dtype([("position", "<u8"), ("length", "<u4"), ("crc", "<u4")])


class Fingerprint:
    """The fingerprint of the records added so far, whose keys have `key_width` digits."""

    def __init__(self, key_width: int) -> None:
        self._width = key_width
        self._fields: dict[str, Any] = {}  # SHA-256 of each field's rows

    def add(self, columns: Arrays) -> None:
        """Add records, by their positions and the columns of their fields."""
        for name in fields_in(columns):
            offset, length, crc = (columns[each] for each in columns_of(name))
            there = offset != np.uint64(NOWHERE)
            rows = np.empty(int(there.sum()), _ROW)
            rows["position"], rows["length"], rows["crc"] = columns["position"][there], length[there], crc[there]
            if len(rows):
                self._fields.setdefault(name, hashlib.sha256()).update(rows)

    def __str__(self) -> str:
        whole = hashlib.sha256(bytes([self._width]))
        for name, own in sorted(self._fields.items()):
            whole.update(bytes([len(name)]) + name.encode() + own.digest())
        return f"sha256:{whole.hexdigest()}"
