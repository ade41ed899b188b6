"""Lists of image files (CSV, TSV, JSON lines, Parquet), and tables of Hugging Face."""

import io
import json
import random
from pathlib import Path
from typing import Any

import arrow_tables
import container_sets

from iofast.errors import IofastError
from iofast.source.options import SourceOptions
from iofast.source.scan import scan
from tools.torture.drivers import Driver, damage
from tools.torture.drivers.reading import WholeRead, check_message, install, look_at

_NAMES = ("path", "file_name", "label", "split", "boxes.json", "caption", "mask", "é", "", "__index_level_0__", "A B")
_OPTIONS = (
    {},
    {"mask_column": "mask"},
    {"file_column": ("mask", "caption")},
    {"label_column": "caption", "class_order": "natural"},
    {"path_column": "file_name", "split_column": "label"},
    {"class_order": "file"},
)
_CELLS = ("0.jpg", "1.jpg", "../x.jpg", "cat", "dog", "0", "1", "-1", "train", "val", "all", "9" * 12, "1.0")
_CELLS += damage.WORDS


class Tables(Driver):
    """Rows of odd names and values, and damaged files."""

    MEMORY = 48

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.images = {f"{n}.jpg": container_sets.picture(n) for n in range(2)}

    def step(self, chance: random.Random) -> str:
        suffix = chance.choice((".csv", ".csv", ".tsv", ".jsonl", ".jsonl", ".parquet"))
        data = {".jsonl": self.lines, ".parquet": self.parquet}.get(suffix, self.delimited)(chance, suffix)
        if chance.random() < (0.3 if suffix != ".parquet" else 0.1):
            data = damage.anywhere(chance, data)
        folder = self.folder / "look"
        install(folder, {**self.images, f"x{suffix}": data, "classes.txt": b"cat\ndog\n"})
        options = chance.choice(_OPTIONS)
        try:
            source = scan(folder / f"x{suffix}", SourceOptions(**options))
            for index in range(min(len(source), 20)):
                source.file(index), source.label(index), source.extra(index), source.files(index)
        except IofastError as error:
            check_message(error, {f"x{suffix}", "classes.txt"})
            return "refused"
        whole = WholeRead(folder / f"x{suffix}", chance)
        whole.names.add("cannot read /")  # a table may name any file
        return whole.run() if not options else "whole"

    def names(self, chance: random.Random) -> list[str]:
        """The columns."""
        few = ["path", *damage.some(chance, _NAMES[2:], 4)]
        if chance.random() < 0.05:
            few += [str(number) for number in range(chance.choice((10, 1500, 3000)))]
        return few if chance.random() < 0.1 else list(dict.fromkeys(few))

    def delimited(self, chance: random.Random, suffix: str) -> bytes:
        """CSV or TSV."""
        names, mark = self.names(chance), "," if suffix == ".csv" else "\t"
        rows = [names, *([self.cell(chance, name) for name in names] for _ in range(chance.randint(0, 6)))]
        quoted = (mark.join(f'"{each}"' if chance.random() < 0.1 else each for each in row) for row in rows)
        return chance.choice(("\n", "\r\n")).join(quoted).encode("utf-8", "surrogatepass")

    def cell(self, chance: random.Random, name: str) -> str:
        """A value, most often one that fits the column."""
        fit = {"path": _CELLS[:2], "label": _CELLS[3:5], "split": _CELLS[8:10], "mask": _CELLS[:2]}.get(name, _CELLS)
        return str(chance.choice(fit if chance.random() < 0.9 else _CELLS))

    def lines(self, chance: random.Random, _: str) -> bytes:
        """JSON lines."""
        made = []
        for number in range(chance.randint(1, 6)):
            row: dict[str, Any] = {name: self.cell(chance, name) for name in self.names(chance)}
            row = damage.value(chance, row) if chance.random() < 0.3 else row
            if chance.random() < 0.1 and isinstance(row, dict):
                row[str(chance.choice(damage.WORDS))] = chance.choice(damage.ODD)
            made.append(damage.text(chance, row))
            if number == 0 and chance.random() < 0.01:
                made += [json.dumps({"path": "0.jpg", str(each): 1}).encode() for each in range(3000)]
        return b"\n".join(made)

    def parquet(self, chance: random.Random, _: str) -> bytes:
        """A Parquet file of odd types."""
        import pyarrow
        import pyarrow.parquet

        count = chance.randint(1, 5)
        columns: dict[str, Any] = {"path": pyarrow.array([f"{n % 2}.jpg" for n in range(count)])}
        kinds = (
            (pyarrow.int64(), 1), (pyarrow.float64(), float("nan")), (pyarrow.binary(), b"\xff"),
            (pyarrow.bool_(), True), (pyarrow.timestamp("ns"), 1), (pyarrow.timestamp("us"), 1 << 62),
            (pyarrow.date32(), 2_000_000_000),
            (pyarrow.list_(pyarrow.int8()), [1]), (pyarrow.decimal128(38, 2), None), (pyarrow.time64("ns"), 5),
            (pyarrow.duration("s"), 1 << 62), (pyarrow.string(), "a"), (pyarrow.large_binary(), b""),
        )  # fmt: skip
        for name in self.names(chance)[1:6]:
            kind, value = chance.choice(kinds)
            columns[name] = pyarrow.array([chance.choice((value, value, None)) for _ in range(count)], kind)
        if chance.random() < 0.1:
            bad = pyarrow.array([b"\xff\xfe"] * count, pyarrow.binary())
            columns["caption"] = pyarrow.Array.from_buffers(pyarrow.string(), count, bad.buffers())
        out = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), out)
        return out.getvalue()


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
