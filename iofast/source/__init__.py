"""What pack and the plain-folder reader read: folders and manifest files. `scan.scan` lists them."""

from iofast.source.listing import Source as Source
from iofast.source.listing import SourceOptions as SourceOptions
