"""Copies of batches to a device, ahead of the consumer and on a stream of their own."""

from iofast.gpu.streams import CudaStreams, Event
from iofast.gpu.transfer import Bus, Direct, Issued, Transfer, transfer_to

__all__ = ["Bus", "CudaStreams", "Direct", "Event", "Issued", "Transfer", "transfer_to"]
