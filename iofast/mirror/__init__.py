"""Sparse local copies of stored objects, in blocks, shared by the processes of a machine.

`locks` are what processes agree by, `copies` is one copy in a file, `cache` the folder with its limit and eviction,
`fetching` brings blocks, `stored` reads an object through its copy. Nothing here knows containers.
"""
