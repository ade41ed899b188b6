"""Where a loader's JPEGs are decoded: what was asked for, what was found, and the device's decoder."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch

from iofast.errors import OptionError, StateError, reason_of, shown
from iofast.gpu.decode.decoder import DeviceDecoder
from iofast.gpu.decode.libraries import lacking, open_decoder
from iofast.gpu.decode.share import WHOLE, Rates, Split, balanced, chosen, explained
from iofast.machine import cores_of_rank

Wanted = Literal["cpu", "gpu", "split", "auto"] | Split

_THREADS = 4  # of so many cores one may help the device's library: the others decode, or launch the training's kernels

_log = logging.getLogger("iofast")


class Decoding:
    """The choice for one loader, and its decoder on the device.

    `share` is how many thousandths of each batch the CPU decodes, None until that is measured. `obstacles` are reasons
    why nothing of this loader can be decoded on a device.
    """

    def __init__(self, wanted: Wanted, device: torch.device, obstacles: Iterator[str]) -> None:
        self._wanted: Wanted = wanted
        self._device = device
        self._decoder: DeviceDecoder | None = None
        self._opening, self._settling = threading.Lock(), threading.Lock()
        self.share: int | None = WHOLE
        self._said = "on the CPU"
        if wanted == "cpu":
            return
        reason = lacking(device) or next(obstacles, None)
        if reason is not None and wanted != "auto":
            raise OptionError(f"decode={wanted!r} is not available: {reason}")
        if reason is not None:
            self._said = f"on the CPU: {reason}"
            return
        self.share = {"gpu": 0}.get(str(wanted), self._split.share if self.splits else None)
        self._said = "still to be measured"
        if self.share is not None:
            self._said = "on the device" if not self.share else f"{self.share / WHOLE:.1%} on the CPU, as it was told"

    @property
    def on_device(self) -> bool:
        """Whether anything is decoded there, as far as is known by now."""
        return self.share != WHOLE

    @property
    def said(self) -> str:
        """Where decoding is done, and why there, in a line."""
        library = self._decoder
        return self._said if library is None or not self.on_device else f"{self._said} ({library.backend.name})"

    @property
    def splits(self) -> bool:
        """Whether batches are divided by a share that is to stay."""
        return self._wanted == "split" or isinstance(self._wanted, Split)

    @property
    def _split(self) -> Split:
        return self._wanted if isinstance(self._wanted, Split) else Split()

    def option(self) -> Wanted:
        """What a copy of the loader is to be told: a share that was measured stays."""
        if not self.splits or self.share is None:
            return self._wanted
        return Split(self.share / WHOLE, self._split.cores)

    def workers(self, cores: int) -> int:
        """So many decoding threads at most, of `cores`."""
        return max(1, int(cores * self._split.cores)) if self.splits else cores

    def decoder(self) -> DeviceDecoder:
        """The device's decoder. For the thread that works for the device, which is the current one."""
        with self._opening:
            if self._decoder is None:
                threads = max(1, cores_of_rank() // _THREADS)
                self._decoder = open_decoder(self._device, threads, adaptive=self._wanted == "auto")
            return self._decoder

    def settle(self, measure: Callable[[], Rates]) -> None:
        """Before the first batch: measure, where there is something to choose; another consumer waits for it."""
        with self._settling:
            if self.share is not None:
                return
            try:
                rates = measure()
            except Exception as error:  # no library works, or the device has no memory left for what it decodes
                if self.splits:
                    raise
                self._said, self.share = f"on the CPU: {reason_of(error)}", WHOLE
            else:
                share = balanced(rates) if self.splits else chosen(rates)
                self._said, self.share = explained(rates, share), share
            _log.info("decode=%r: %s", self._wanted, self.said)

    def state(self) -> dict[str, Any]:
        """What a state of the loader has of it: the share, without which a resume would not give the same pixels."""
        return {"split": self.share} if self.splits and self.share is not None else {}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on with the share of a state. Raises `StateError` where it is another than this loader was told."""
        if not self.splits or "split" not in state:
            return
        share = state["split"]
        if not isinstance(share, int) or isinstance(share, bool) or not 0 <= share <= WHOLE:
            raise StateError(f"split of a loader's state must be a whole number up to {WHOLE}, found {shown(share)}")
        if self._split.share not in (None, share):
            raise StateError(
                f"the state is of another split: {share} of {WHOLE} positions on the CPU, this loader has "
                f"{self._split.share}"
            )
        self.share, self._said = share, f"{share / WHOLE:.1%} on the CPU, as in the state"
