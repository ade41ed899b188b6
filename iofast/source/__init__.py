"""What pack and the readers of folders read. `scan.scan` lists folders and manifest files."""

from iofast.source.listing import Source as Source
from iofast.source.listing import SourceOptions as SourceOptions
