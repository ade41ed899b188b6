"""JPEGs decoded on the device: libraries behind one small interface, found, checked, and called in a safe order."""

from iofast.gpu.decoding.base import Backend as Backend
from iofast.gpu.decoding.base import Jpeg as Jpeg
from iofast.gpu.decoding.decoder import DeviceDecoder as DeviceDecoder
from iofast.gpu.decoding.find import lacking as lacking
from iofast.gpu.decoding.find import open_decoder as open_decoder

__all__ = ["Backend", "DeviceDecoder", "Jpeg", "lacking", "open_decoder"]
