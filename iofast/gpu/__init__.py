"""The way of a batch to its device, ahead of the consumer and beside its work."""

from iofast.gpu.streams import CudaStreams as CudaStreams
from iofast.gpu.streams import Event as Event
from iofast.gpu.streams import Stream as Stream
from iofast.gpu.streams import Streams as Streams
from iofast.gpu.streams import aside as aside
from iofast.gpu.transfer import AHEAD as AHEAD
from iofast.gpu.transfer import Bus as Bus
from iofast.gpu.transfer import Direct as Direct
from iofast.gpu.transfer import Issued as Issued
from iofast.gpu.transfer import Transfer as Transfer
from iofast.gpu.transfer import way_to as way_to

__all__ = [
    "AHEAD",
    "Bus",
    "CudaStreams",
    "Direct",
    "Event",
    "Issued",
    "Stream",
    "Streams",
    "Transfer",
    "aside",
    "way_to",
]
