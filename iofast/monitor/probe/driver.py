"""The NVIDIA driver's library, by nvidia-ml-py: a question that the driver does not answer is None.

Reasons are kept as notes, one line for each GPU and reason, until the same question is answered. A question that a GPU
does not support is asked once. A restarted driver is opened again.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND, _IS_LOST = 3, 4, 13, 15
_NO_ANSWER_YET = {6, 21}  # not found, no data: an idle GPU has no samples
_DRIVER_GONE = {1, 9, 18}  # uninitialised, not loaded, another version than the library's
_ABSENT = {_IS_LOST, 16, 28, *_DRIVER_GONE}  # no other question is worth asking in this interval
_REASONS = {
    1: "the driver was restarted",
    _NOT_SUPPORTED: "not supported by this GPU or its mode",
    _NO_PERMISSION: "no permission",
    9: "the driver is not loaded",
    12: "libnvidia-ml.so.1 was not found (in a container: start it with --gpus all)",
    _FUNCTION_NOT_FOUND: "the driver is too old",
    _IS_LOST: "the GPU is lost (it fell off the bus, or was reset)",
    16: "the GPU needs a reset",
    18: "driver and library are of different versions (after an update: reboot)",
}
_ALL = "figures at all"
_DRIVER = "the driver"
_RETRY_S = 5.0  # between attempts to open a driver that went away: opening takes a second


@dataclass(frozen=True)
class Unit:
    """A GPU, or one MIG instance of it: then `whole` is the GPU's handle and `instance` the GPU instance's number."""

    index: int  # of the GPU, as the driver counts
    name: str
    uuid: str
    handle: Any
    whole: Any
    instance: int | None = None

    @property
    def label(self) -> str:
        return f"GPU {self.index}" if self.instance is None else f"GPU {self.index} instance {self.instance}"


class Driver:
    """An open driver library. The constructor raises `DriverError`."""

    def __init__(self) -> None:
        try:
            import pynvml  # type: ignore[import-untyped]  # only programs that watch GPUs pay for it
        except ImportError:
            raise DriverError("GPUs are not seen: nvidia-ml-py is not installed") from None
        self.nvml: Any = pynvml
        self.openings = 1  # handles and samples of an earlier opening must not be used
        self._notes: dict[tuple[str, str], str] = {}  # (GPU, figure): reason
        self._refused: set[tuple[str, str]] = set()  # (uuid, function) that need not be asked again
        self._absent: set[str] = set()  # labels of GPUs that stopped answering in this enumeration
        self._known: dict[int, tuple[Unit, ...]] = {}  # by index of the GPU, as last seen
        self._gone = False
        self._retry_at = 0.0
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DriverError(f"GPUs are not seen: {_reason(error)}") from None

    def notes(self) -> tuple[str, ...]:
        """A line for each GPU and reason: which figures are missing, and why."""
        lines: dict[tuple[str, str], list[str]] = {}
        for (label, figure), reason in self._notes.items():
            lines.setdefault((label, reason), []).append(figure)
        return tuple(f"{label}: no {', '.join(figures)}: {reason}" for (label, reason), figures in lines.items())

    def units(self) -> tuple[Unit, ...]:
        """The current GPUs or MIG instances. A GPU that vanished stays listed, answers nothing, and has its note."""
        self._absent.clear()
        if self._gone:
            self._reopen()
        count = None if self._gone else self.ask(None, "list of GPUs", "nvmlDeviceGetCount")
        for index in range(count or 0):
            self._enumerate(index)
        for index, units in self._known.items():
            if count is None or index >= count:
                self._absent.update(unit.label for unit in units)
        return tuple(unit for index in sorted(self._known) for unit in self._known[index])

    def ask(self, unit: Unit | None, figure: str, function: str, *arguments: Any) -> Any:
        """Return the answer of a function of nvidia-ml-py, or None. `figure` names it in a note."""
        label, key = (_DRIVER, ("", function)) if unit is None else (unit.label, (unit.uuid, function))
        if key in self._refused or label in self._absent:
            return None
        call = getattr(self.nvml, function, None)
        if call is None:
            self._refused.add(key)
            self._notes[label, figure] = "nvidia-ml-py is too old"
            return None
        try:
            answer = call(*arguments)
        except self.nvml.NVMLError as error:
            self._failed(label, figure, key, error)
            return None
        except ValueError:  # text that is not UTF-8
            return None
        self._notes.pop((label, figure), None)
        return answer

    def note(self, unit: Unit, figure: str, reason: str | None) -> None:
        """Note why `figure` is missing; None where it is not missing any more."""
        if reason is None:
            self._notes.pop((unit.label, figure), None)
        else:
            self._notes[unit.label, figure] = reason

    def absent(self, unit: Unit) -> bool:
        """Whether the GPU has stopped answering."""
        return unit.label in self._absent

    def close(self) -> None:
        """Close the library, which the driver may have closed already."""
        with contextlib.suppress(self.nvml.NVMLError):
            self.nvml.nvmlShutdown()

    def _failed(self, label: str, figure: str, key: tuple[str, str], error: Any) -> None:
        code = error.value
        if code in _NO_ANSWER_YET:
            return
        if code in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND):
            self._refused.add(key)
        self._gone |= code in _DRIVER_GONE
        if code in _ABSENT:
            self._absent.add(label)
            figure = _ALL
        self._notes[label, figure] = _reason(error)

    def _reopen(self) -> None:
        if time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + _RETRY_S
        self.close()
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError as error:
            self._notes[_DRIVER, _ALL] = _reason(error)
            return
        self._gone = False
        self.openings += 1
        self._refused.clear()
        self._notes.clear()

    def _enumerate(self, index: int) -> None:
        """Note the units of the GPU with this index; where it does not answer, its last units stay known."""
        known = self._known.get(index, ())
        whole = known[0] if known and known[0].instance is None else Unit(index, "", f"#{index}", None, None)
        handle = self.ask(whole, "handle", "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            self._absent.update(unit.label for unit in (whole, *known))
            return
        self.note(whole, _ALL, None)
        name = self.ask(whole, "name", "nvmlDeviceGetName", handle) or whole.name or "GPU"
        uuid = self.ask(whole, "uuid", "nvmlDeviceGetUUID", handle) or whole.uuid
        whole = Unit(index, name, uuid, handle, handle)
        instances = self._instances(whole)
        if not self.absent(whole):
            self._known[index] = (whole,) if instances is None else instances

    def _instances(self, whole: Unit) -> tuple[Unit, ...] | None:
        """Its MIG instances; None where MIG is off, or unknown to the GPU."""
        try:
            if not self.nvml.nvmlDeviceGetMigMode(whole.handle)[0]:
                return None
        except self.nvml.NVMLError:  # a GPU without MIG does not support the question: no note
            return None
        instances = []
        for number in range(self.ask(whole, "MIG instances", "nvmlDeviceGetMaxMigDeviceCount", whole.handle) or 0):
            handle = self.ask(whole, "MIG instances", "nvmlDeviceGetMigDeviceHandleByIndex", whole.handle, number)
            if handle is None:  # numbers have gaps
                continue
            instance = self.ask(whole, "MIG instances", "nvmlDeviceGetGpuInstanceId", handle)
            name = self.ask(whole, "name", "nvmlDeviceGetName", handle) or whole.name
            uuid = self.ask(whole, "uuid", "nvmlDeviceGetUUID", handle) or f"{whole.uuid}/{number}"
            if instance is not None:
                instances.append(Unit(whole.index, name, uuid, handle, whole.handle, instance))
        return tuple(instances)


class DriverError(Exception):
    """The driver cannot be used. The message is the line to show."""


def _reason(error: Any) -> str:
    return _REASONS.get(error.value, f"the driver answers {type(error).__name__}, code {error.value}")
