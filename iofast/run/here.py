"""`import iofast.run.here` does in this process, and in its workers, what `iofast run` does from outside.

In a notebook `%load_ext iofast` is the same.
"""

from iofast.run import patches

patches.install()


def load_ipython_extension(_: object) -> None:
    """Do nothing more: IPython asks for this function after the import."""
