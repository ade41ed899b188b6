"""JPEGs decoded on the device.

backend.py    what a library has to do; nvimagecodec.py and torch_libraries.py are such libraries
libraries.py  finds one that works
decoder.py    calls it in a safe order
share.py      how much of a batch the CPU decodes; choice.py decides it for a loader
divided.py    where the pixels of such a batch go; rows.py is the argument of its `decode`
"""

from iofast.gpu.decode.backend import Backend as Backend
from iofast.gpu.decode.backend import Jpeg as Jpeg
from iofast.gpu.decode.choice import Decoding as Decoding
from iofast.gpu.decode.decoder import DeviceDecoder as DeviceDecoder
from iofast.gpu.decode.divided import Divided as Divided
from iofast.gpu.decode.libraries import lacking as lacking
from iofast.gpu.decode.libraries import open_decoder as open_decoder
from iofast.gpu.decode.share import WHOLE as WHOLE
from iofast.gpu.decode.share import Rates as Rates
from iofast.gpu.decode.share import Split as Split
from iofast.gpu.decode.share import on_cpu as on_cpu

__all__ = [
    "WHOLE",
    "Backend",
    "Decoding",
    "DeviceDecoder",
    "Divided",
    "Jpeg",
    "Rates",
    "Split",
    "lacking",
    "on_cpu",
    "open_decoder",
]
