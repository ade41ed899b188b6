"""The commands of `iofast`, one module each, which is imported if its command is given.

A module has `add_options(parser)`, and `run(args)`, which returns the exit status. Its docstring is its help: the
description, and behind an empty line the examples.
"""

COMMANDS = {  # with a line of help each, in the order of the help
    "run": "run a training script unchanged, with its JPEGs decoded several times as fast",
    "pack": "pack images into one file, or into shards",
    "info": "show the contents of a container or folder",
    "verify": "check a container, and list damaged records",
    "convert": "copy a container into another format, or into a folder",
    "cat": "show a record, or write one of its fields to stdout",
    "view": "draw records as one picture, with labels, masks and boxes",
    "stage": "fill the cache from an object store",
    "cache": "list, verify or clear the copies of stored objects and of Parquet files",
    "bench": "measure how fast a dataset loads on this machine",
    "monitor": "find out whether training waits for its data, and why",
    "doctor": "show what is installed here, and what is missing",
}
