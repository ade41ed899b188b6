"""What pack and the readers of folders and foreign containers read. `scan.scan` lists folders and manifest files."""

from iofast.source.foreign import ForeignOptions as ForeignOptions
from iofast.source.listing import Source as Source
from iofast.source.listing import SourceOptions as SourceOptions
