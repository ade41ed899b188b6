"""What pack and the readers of folders read. `scan.scan` lists folders and manifest files as a `listing.Listing`."""

from iofast.source.options import SourceOptions as SourceOptions
