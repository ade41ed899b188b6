"""Long runs, one module each. A part has a docstring that says what must hold, and `run()`.

`run()` returns lines of Markdown, the findings; it raises `Failed` where what must hold does not. A module in this
folder is a part as soon as it is there.
"""

from __future__ import annotations


class Failed(Exception):  # noqa: N818 (it reads as a verdict, which it is)
    """What the part set out to show is not so. The message says what was seen."""
