"""Copies of batches to a device, ahead of the consumer and on a stream of their own."""

from iofast.gpu.streams import CudaStreams, Event, aside
from iofast.gpu.transfer import AHEAD, Bus, Direct, Issued, Transfer, transfer_to

__all__ = ["AHEAD", "Bus", "CudaStreams", "Direct", "Event", "Issued", "Transfer", "aside", "transfer_to"]
