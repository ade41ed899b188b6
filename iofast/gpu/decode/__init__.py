"""JPEGs decoded on the device by nvImageCodec.

backend.py    the interface of a decoding library, for tests too; nvimagecodec.py implements it
library.py    opens and tries it
decoder.py    calls it in a safe order
choice.py     whether a loader decodes there
parts_canvas.py  where the JPEGs and pixels of such a batch go; rows.py is the argument of its `decode`
"""

from iofast.gpu.decode.backend import Backend, Jpeg
from iofast.gpu.decode.choice import Decoding
from iofast.gpu.decode.decoder import DeviceDecoder
from iofast.gpu.decode.library import lacking, open_decoder
from iofast.gpu.decode.parts_canvas import PartsCanvas

__all__ = ["Backend", "Decoding", "DeviceDecoder", "Jpeg", "PartsCanvas", "lacking", "open_decoder"]
