"""Restart markers in the output of `iofast info`."""

import json
from collections import Counter
from pathlib import Path

import pytest
from container_sets import records
from kernel_images import jpeg, photo

from iofast import kernel
from iofast.cli import main
from iofast.commands import info
from iofast.packing import pack


def test_info(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    images, target = tmp_path / "images", tmp_path / "out.lmdb"
    images.mkdir()
    for number, width in enumerate((352, 320, 344, 256, 240, 80)):  # rows of 22, 20, 21.5, 16, 15 and 5 MCUs at 4:2:0
        (images / f"{number}.jpg").write_bytes(jpeg(photo(width, 90, number)))
    assert main(["info", str(images)]) == 0
    assert "no markers" in capsys.readouterr().out

    pack(images, target, resize=90)
    wanted = Counter(str(kernel.read_header(record.fields["jpg"]).restart) for record in records(target))
    assert main(["info", str(target), "--json"]) == 0
    restart = json.loads(capsys.readouterr().out)["restart"]
    assert restart == {"sampled": 6, "jpegs": 6, "share": 1.0, "intervals": dict(wanted)}
    assert main(["info", str(target)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    most, number = wanted.most_common(1)[0]
    assert f"markers in 100% of the JPEGs; MCUs per interval: {most} in {number / 6:.0%}" in text
    assert "sampled" not in text
    monkeypatch.setattr(info, "_SAMPLE", 5)
    assert main(["info", str(target)]) == 0
    assert "(of 5 sampled)" in " ".join(capsys.readouterr().out.split())

    pack(images, tmp_path / "png.lmdb", format="png")
    assert main(["info", str(tmp_path / "png.lmdb"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["restart"] is None
