"""What a long run has done so far, so that an interrupted run continues on the same commit."""

from __future__ import annotations

import json
from typing import Any

from tools import machine
from tools.torture import ROOT


class Progress(dict[str, Any]):
    """Values that JSON can hold, in build/torture-NAME.json. The progress of another commit is ignored."""

    def __init__(self, name: str, commit: str | None = None) -> None:
        self._path, self._commit = ROOT / "build" / f"torture-{name}.json", commit or machine.commit()
        saved = json.loads(self._path.read_text()) if self._path.exists() else {}
        super().__init__(saved["done"] if saved.get("commit") == self._commit else {})

    def save(self) -> None:
        """Replace the file at once: a kill leaves the old progress or the new."""
        self._path.parent.mkdir(exist_ok=True)
        self._path.with_suffix(".new").write_text(json.dumps({"commit": self._commit, "done": self}))
        self._path.with_suffix(".new").replace(self._path)

    def remove(self) -> None:
        """The run is over: the next one starts from the beginning."""
        self._path.unlink(missing_ok=True)
