"""`python -m iofast` is the command `iofast`."""

import sys

from iofast.cli import main

sys.exit(main())
