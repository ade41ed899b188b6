"""Long runs, one module each. A part has a docstring that states what must hold, and `run()`.

`run()` returns its findings as lines of Markdown. It raises `Failed` if something does not hold, and `NotTried` where
it cannot run. Every module of this folder without a leading underscore is a part.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = str(ROOT / "tests" / "support")  # builders of sound files, which the parts share with the tests
if SUPPORT not in sys.path:
    sys.path.append(SUPPORT)


class Failed(Exception):  # noqa: N818 (it reads as a verdict)
    """What the part must show does not hold. The message gives what was seen."""


class NotTried(Exception):  # noqa: N818 (likewise)
    """The part cannot run on this machine. The message gives what is missing."""
