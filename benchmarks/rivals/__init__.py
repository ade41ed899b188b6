"""iofast beside every rival: `python -m benchmarks.rivals`, `make bench-rivals`.

contenders.py  the rivals, their environments and what they can do
peers/         a script for each, which runs in the rival's own environment; protocol.py is what they share
running.py     their processes
page.py        the tables
__main__.py    data, rounds, and what is written
"""
