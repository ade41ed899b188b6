"""`iofast view --transform`: images after a preset."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine
from container_sets import build, picture
from PIL import Image

from iofast import open_writer
from iofast import transforms as T
from iofast.cli import main
from iofast.commands.view_transform import preset, presets
from iofast.sheet import CAPTION, MARGIN

GRAY = (90, 130, 200)


def view(path: Path, transform: str, *options: object) -> np.ndarray:  # type: ignore[type-arg]
    target = path.parent / "sheet.png"
    words = [str(path), str(target), "--transform", transform, *map(str, options), "--overwrite", "--quiet"]
    assert main(["view", *words]) == 0
    with Image.open(target) as image:
        return np.asarray(image.convert("RGB")).astype(np.int64)


def plain(path: Path, **fields: object) -> Path:
    """A container of three images of one colour."""
    out = io.BytesIO()
    Image.new("RGB", (64, 64), GRAY).save(out, "png")
    with open_writer(path) as writer:
        for _ in range(3):
            writer.write({"png": out.getvalue(), **fields})
    return path


def test_normalisation_is_undone(tmp_path: Path) -> None:
    sheet = view(plain(tmp_path / "set.lmdb"), "train(32)", "--size", 32)
    assert (abs(sheet[MARGIN : MARGIN + 32, MARGIN : MARGIN + 32] - GRAY) <= 1).all()


def test_views_are_side_by_side_in_proportion(tmp_path: Path) -> None:
    dino, options = "dino(64, local_size=32, local=3)", ("--size", 64, "--indices", 0)
    sheet = view(plain(tmp_path / "set.lmdb"), dino, *options)
    assert sheet.shape[1] == 2 * MARGIN + 2 * (64 + MARGIN) + 3 * (32 + MARGIN) - MARGIN
    assert sheet.shape[0] == 2 * MARGIN + 64 + 2 * CAPTION
    row = (sheet[MARGIN + 60] != 255).any(axis=1)
    starts = np.flatnonzero(np.diff(row.astype(int), prepend=0) == 1).tolist()
    assert starts == [MARGIN, 64 + 2 * MARGIN, *(MARGIN + 2 * (64 + MARGIN) + n * (32 + MARGIN) for n in range(3))]
    assert (sheet[MARGIN : MARGIN + 32, 2 * (64 + MARGIN) + MARGIN :] == 255).all()  # above the smaller ones


def test_every_preset_draws(tmp_path: Path) -> None:
    path = build(tmp_path / "set.tar")
    for name in presets():
        assert view(path, f"{name}(24)", "--count", 3).size


def test_random_choices_depend_on_the_seed(container: Path) -> None:
    def drawn(seed: int) -> np.ndarray:  # type: ignore[type-arg]
        return view(container, "train(32)", "--indices", "0-3", "--seed", seed)

    assert (drawn(1) == drawn(1)).all()
    assert (drawn(1) != drawn(2)).any()


def test_a_broken_image_has_a_red_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_writer(tmp_path / "set.lmdb") as writer:
        for data in (picture(1)[:-300], picture(2)):
            writer.write({"jpg": data})
    for name in ("train(32)", "dino(32, 24)"):
        sheet = view(tmp_path / "set.lmdb", name, "--size", 100, "--columns", 1)
        assert (sheet[MARGIN, MARGIN : MARGIN + 100] == (255, 0, 0)).all()
    assert capsys.readouterr().err == ""


def test_json(container: Path, tmp_path: Path, iofast: CommandLine) -> None:
    line = ("view", container, tmp_path / "sheet.png", "--transform", "simclr(32)", "--count", "2", "--json")
    assert iofast(*line).facts["transform"] == "simclr(32)"


def test_arguments_are_literals() -> None:
    assert preset("train") == T.compile(T.train())
    assert preset(" dino(64, local=2, scale=(0.3, 1)) ") == T.compile(T.dino(64, local=2, scale=(0.3, 1)))
    assert preset("timm_train(64, re_prob=0.25)") == T.compile(T.timm_train(64, re_prob=0.25))
    assert set(presets()) == {"train", "evaluate", "timm_train", "simclr", "dino"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dnio", "must be one of dino, evaluate, "),
        ("dnio(224)", "found 'dnio': did you mean dino?"),
        ("compile([])", "must be one of dino, evaluate, "),
        ("train(a=1)", "train does not take the arguments in 'train(a=1)': "),
        ("train('x')", "RandomResizedCrop: size must be an int"),
        ("dino(scale=7)", "scale must be (low, high), found 7"),
        ("train(30000)", "expected at most 67,108,864 pixels of each image, found 900,000,000"),
        ("timm_train(24, train_crop_mode='x')", "timm_train: train_crop_mode must be rrc, rkrc or rkrr, found 'x'"),
        ("train(open('x'))", "must be a preset, with numbers"),
        ("train(**{})", "must be a preset, with numbers"),
        ("train(*[1])", "must be a preset, with numbers"),
        ("__import__('os').getcwd()", "must be a preset, with numbers"),
        ("train(", "must be a preset, with numbers"),
        ("(" * 5000, "must be a preset, with numbers"),
        ("train(\x00)", "must be a preset, with numbers"),
        ("", "must be a preset, with numbers"),
    ],
)
def test_invalid_presets(text: str, words: str, tmp_path: Path, iofast: CommandLine) -> None:
    path, target = plain(tmp_path / "set.lmdb"), tmp_path / "sheet.png"
    iofast("view", path, target, "--transform", text).fails(2, words)
    assert not target.exists()
