"""JPEGs decoded on the device.

backend.py    the interface of a decoding library; nvimagecodec.py and torch_libraries.py implement it
libraries.py  finds a library that works
decoder.py    calls a library in a safe order
share.py      how much of a batch the CPU decodes; choice.py decides it for a loader
divided.py    where the pixels of such a batch go; rows.py is the argument of its `decode`
"""

from iofast.gpu.decode.backend import Backend, Jpeg
from iofast.gpu.decode.choice import Decoding
from iofast.gpu.decode.decoder import DeviceDecoder
from iofast.gpu.decode.divided import Divided
from iofast.gpu.decode.libraries import lacking, open_decoder
from iofast.gpu.decode.share import WHOLE, Rates, Split, on_cpu

__all__ = [
    "WHOLE", "Backend", "Decoding", "DeviceDecoder", "Divided", "Jpeg", "Rates", "Split",
    "lacking", "on_cpu", "open_decoder",
]  # fmt: skip
