"""Restart markers: in packed files, in the recipe, and in the output of `iofast info`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kernel_images import jpeg, photo

from iofast import kernel
from iofast.cli import main
from iofast.commands import info
from iofast.containers.lmdb import LmdbReader
from iofast.packing import pack


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs whose rows have 22, 20, 21.5, 16, 15 and 5 MCUs at 4:2:0."""
    root = tmp_path_factory.mktemp("images")
    for number, width in enumerate((352, 320, 344, 256, 240, 80)):
        (root / f"{number}.jpg").write_bytes(jpeg(photo(width, 90, number)))
    return root


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, bytes]]]:
    """The recipe, and the fields of every record."""
    with LmdbReader(path) as reader:
        return dict(reader.manifest.recipe), [dict(record.fields) for record in reader]


class TestCommands:
    def test_info(self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        target = tmp_path / "out.lmdb"
        pack(images, target, resize=90)
        wanted = Counter(str(kernel.read_header(fields["jpg"]).restart) for fields in read(target)[1])
        assert main(["info", str(target), "--json"]) == 0
        restart = json.loads(capsys.readouterr().out)["restart"]
        assert restart == {"sampled": 6, "jpegs": 6, "share": 1.0, "intervals": dict(wanted)}
        assert main(["info", str(target)]) == 0
        text = " ".join(capsys.readouterr().out.split())
        most, number = wanted.most_common(1)[0]
        assert f"markers in 100% of the JPEGs; MCUs per interval: {most} in {number / 6:.0%}" in text
        assert "sampled" not in text

    def test_info_of_a_sample(
        self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pack(images, tmp_path / "out.lmdb", resize=64)
        monkeypatch.setattr(info, "_SAMPLE", 5)
        assert main(["info", str(tmp_path / "out.lmdb")]) == 0
        assert "(of 5 sampled)" in " ".join(capsys.readouterr().out.split())

    def test_info_without_markers_and_without_jpegs(
        self, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["info", str(images)]) == 0
        assert "no markers" in capsys.readouterr().out
        pack(images, tmp_path / "out.lmdb", format="png")
        assert main(["info", str(tmp_path / "out.lmdb"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["restart"] is None
