"""`PayloadCheck`: read payloads, compare them with their checksums, and decode every image, slice by slice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.checking.problems import Findings
from iofast.containers.base import Failures, Located, Reader
from iofast.containers.columns import ABSENT
from iofast.errors import DecodeError, IofastError
from iofast.kernel import memory
from iofast.kernel.contract import Header, TranscodeRecipe
from iofast.record import IMAGE_FIELDS, LABEL_FIELD, RAW_FIELDS, image_field, raw_length

SLICE_BYTES = 16 << 20  # bytes of payloads that one thread reads before it decodes them
SLICE_RECORDS = 256

_KEPT = TranscodeRecipe(format="keep")  # decodes without any change
_MASKS = ("png", "jpg", "jpeg", "webp")  # the last part of names such as `seg.png`


class PayloadCheck:
    """Checks slices of records, in any number of threads. `own`: iofast wrote the container."""

    def __init__(self, reader: Reader, findings: Findings, *, decode: bool, own: bool) -> None:
        self._reader, self._findings, self._decode, self._strict = reader, findings, decode, own

    def check(self, indices: NDArray[np.int64]) -> int:
        """Check all payloads of these records; returns the bytes that were read."""
        image, read = image_field(self._reader.manifest.fields), 0
        for name in self._reader.manifest.fields:
            try:
                located = self._reader.locate(indices, name)
            except KeyError:  # in no file, like path and label of a plain folder
                self._unplaced(indices, name)
                continue
            failed: Failures = {}
            values = self._reader.values(indices, name, failed=failed)
            for row, error in sorted(failed.items()):
                self._findings.add(str(error), int(indices[row]), name, int(located.offset[row]))
            size = sum(len(value) for value in values if value is not None)
            there = int((located.file != ABSENT).sum())
            sums = 0 if located.crc is None else there
            self._findings.count(checked=sums, unchecked=there - sums, size=size)
            read += size
            self._look(name, located, values, image)
        return read

    def _unplaced(self, indices: NDArray[np.int64], name: str) -> None:
        """Read fields that `locate` does not know: from the index, from numbers, and from files beside the images."""
        failed: Failures = {}
        try:
            self._reader.values(indices, name, failed=failed)
        except IofastError as error:
            self._findings.add(str(error), int(indices[0]) if len(indices) == 1 else None, name)
        for row in sorted(failed):
            self._findings.add(str(failed[row]), int(indices[row]), name)

    def _look(self, name: str, located: Located, values: list[bytes | None], image: str | None) -> None:
        if name == LABEL_FIELD:
            if self._strict:  # in other programs' containers it need not be a number
                self._labels(located, values)
        elif name in RAW_FIELDS:
            self._raw(name, located, values)
        elif not self._decode:
            return
        elif name in IMAGE_FIELDS:
            self._images(name, located, values, self._own(located, name, image))
        elif name.rpartition(".")[2] in _MASKS:
            self._images(name, located, values, np.zeros(len(values), np.bool_))

    def _own(self, located: Located, name: str, image: str | None) -> NDArray[np.bool_]:
        """Which of these payloads are their record's image: the index has the size of this one."""
        if name == image:
            return np.ones(len(located.indices), np.bool_)
        best = self._reader.locate(located.indices)
        same: NDArray[np.bool_] = (best.offset == located.offset) & (best.file == located.file)
        return same

    def _labels(self, located: Located, values: list[bytes | None]) -> None:
        for row, value in _present(values):
            label = int(located.label[row])
            if value != b"%d" % label:
                reason = f"{LABEL_FIELD} is {value!r:.40}, but the index has label {label}"
                self._findings.add(reason, int(located.indices[row]), LABEL_FIELD, int(located.offset[row]))

    def _raw(self, name: str, located: Located, values: list[bytes | None]) -> None:
        for row, value in _present(values):
            width, height = int(located.width[row]), int(located.height[row])
            if len(value) != (expected := raw_length(width, height)):
                reason = f"{name} has {len(value)} bytes, {width}×{height} needs {expected}"
                self._findings.add(reason, int(located.indices[row]), name, int(located.offset[row]))

    def _images(self, name: str, located: Located, values: list[bytes | None], is_image: NDArray[np.bool_]) -> None:
        for row, value in _present(values):
            try:
                header = kernel.read_header(value)
                reason = _contradiction(header, located, row) if is_image[row] else ""
                if not reason:
                    with memory.reserved(memory.of_whole(header)):
                        kernel.transcode(value, _KEPT)
                    self._findings.count(images=1)
            except DecodeError as error:
                reason = str(error)
            if reason:
                offset = int(located.offset[row])
                self._findings.add(f"{name} at offset {offset}: {reason}", int(located.indices[row]), name, offset)


def _present(values: list[bytes | None]) -> list[tuple[int, bytes]]:
    """Row and value of each record that has the field."""
    return [(row, value) for row, value in enumerate(values) if value is not None]


def _contradiction(header: Header, located: Located, row: int) -> str:
    """The difference between the image's header and the index; empty if there is none."""
    index = tuple(int(column[row]) for column in (located.width, located.height, located.orientation))
    found = (header.width, header.height, header.orientation)
    if index == found or index[:2] == (0, 0):  # unknown
        return ""
    words = [f"{width}×{height} pixels, orientation {orientation}" for width, height, orientation in (found, index)]
    return f"the image has {words[0]}, but the index has {words[1]}"
