"""Chunks of an index taken apart, to be changed and encoded again with right checksums."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers import index
from iofast.containers.index import BLOCK_ROWS, CRC_SIZE, Head


def sections_of(chunk: bytes, fields: int) -> tuple[Head, dict[int, NDArray[Any]]]:
    """The head and the rows of each section of a chunk; `fields` is the number of fields of the manifest."""
    head = index.decode_head(chunk, fields)
    sections = {}
    for code, start in head.starts.items():
        kind, rows = index.row_type(code), bytearray()
        for block in range(0, head.rows, BLOCK_ROWS):
            at = start + block * kind.itemsize + block // BLOCK_ROWS * CRC_SIZE
            rows += chunk[at : at + min(BLOCK_ROWS, head.rows - block) * kind.itemsize]
        sections[code] = np.frombuffer(rows, kind)
    return head, sections


def encoded(head: Head, sections: dict[int, NDArray[Any]]) -> bytes:
    """The chunk with these sections."""
    data = {code: rows.tobytes() for code, rows in sections.items()}
    return index.encode_chunk(data, head.first, head.rows, head.position, head.stamp)
