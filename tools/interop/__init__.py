"""Other programs read what iofast wrote, and iofast reads what they wrote: each in its own environment.

`peers/` has the programs as their users write them. A reader prints a line of JSON per record (key, SHA-256 of the
payload, label); a writer prints the same of what it wrote. `make interop` runs all, compares record by record, and
writes the table in docs/format.md. `pages` runs the pages of docs/coming-from/.
"""
