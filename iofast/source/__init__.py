"""What pack and the readers of folders read. `scan.scan` lists folders and manifest files."""

from iofast.source.listing import Listing as Listing
from iofast.source.listing import SourceOptions as SourceOptions
