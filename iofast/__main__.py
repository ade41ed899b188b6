"""`python -m iofast` is the command `iofast`."""

from __future__ import annotations

import sys

from iofast.cli import main

sys.exit(main())
