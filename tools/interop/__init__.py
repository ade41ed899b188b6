"""Other programs read what iofast wrote, and iofast what they wrote: each in its own environment, record by record.

`peers/` are programs as their users write them; they know nothing of iofast. One that reads prints a line of JSON per
record (key, SHA-256 of the payload, label); one that writes prints the same of what it wrote. `python -m tools.interop`
runs them all, compares, and writes the table in docs/format.md; `make interop` does.
"""
