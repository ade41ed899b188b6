"""Tables of Hugging Face."""

import json
import random
from pathlib import Path

import arrow_tables

from tools.torture.drivers import Driver, damage
from tools.torture.drivers.reading import look_at


class Arrow(Driver):
    """Arrow files (streams, and with an index at their end), Parquet files, and folders of `save_to_disk`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rows = arrow_tables.table(arrow_tables.columns(6))
        arrow_tables.write_arrow(folder / "stream.arrow", rows)
        arrow_tables.write_arrow(folder / "file.arrow", rows, is_file=True)
        arrow_tables.write_parquet(folder / "table.parquet", rows)
        arrow_tables.write_parquet(folder / "plain.parquet", rows, compression="none", use_dictionary=False)
        saved = arrow_tables.save_to_disk(folder / "saved", rows)
        self.sets = [{path.name: path.read_bytes()} for path in sorted(folder.iterdir()) if path.is_file()]
        self.sets.append({path.name: path.read_bytes() for path in saved.iterdir()})

    def step(self, chance: random.Random) -> str:
        files = dict(chance.choice(self.sets))
        single = next(iter(files)) if len(files) == 1 else ""
        if "state.json" in files:
            state = damage.value(chance, json.loads(files["state.json"])) if chance.random() < 0.5 else None
            files["state.json"] = damage.text(chance, state) if state is not None else files["state.json"]
        for name in damage.some(chance, [each for each in files if each != "state.json"], 1):
            files[name] = damage.anywhere(chance, files[name])
        return look_at(self.folder / "look", files, single, chance)
