"""The pages docs/coming-from/: ours runs as printed on data of the other program's format.

`make interop` runs all of them with the packages that they are about.
"""

from collections.abc import Callable
from pathlib import Path

import arrow_tables
import pytest
import tfrecord_messages
from command_line import type_in
from places import ROOT
from tar_sets import foreign

from iofast import FastDataset, FastLoader, open_writer
from tools import site
from tools.interop.environments import ENVIRONMENTS
from tools.interop.pages import CLASSES, DOCUMENTS, PAGES, Snippet, snippets, write_images

HEADINGS = ("## Before", "## After", "## What maps to what", "## What differs")
Samples = list[tuple[bytes, int]]  # JPEG and label


def write_tars(folder: Path, samples: Samples) -> None:
    for shard in range(4):
        members = []
        for number, (jpg, label) in list(enumerate(samples))[shard::4]:
            members += [(f"{number:08d}.cls", b"%d" % label), (f"{number:08d}.jpg", jpg)]
        foreign(folder / f"train-{shard:06d}.tar", members)


def write_tfrecords(folder: Path, samples: Samples) -> None:
    for shard in range(64):
        records = [{"image/encoded": jpg, "image/class/label": 1 + label} for jpg, label in samples[shard::64]]
        tfrecord_messages.write(folder / f"train-{shard:05d}-of-00064", records)


def write_copy(folder: Path, samples: Samples) -> None:
    """What the page's script writes of files that only the other package reads."""
    with open_writer(folder / "train.lmdb", classes=list(CLASSES)) as writer:
        for jpg, label in samples:
            writer.write({"jpg": jpg, "cls": label})


def write_tables(folder: Path, samples: Samples) -> None:
    columns = {"image": [{"bytes": jpg, "path": None} for jpg, _ in samples], "label": [label for _, label in samples]}
    arrow_tables.save_to_disk(folder / "saved", arrow_tables.table(columns, CLASSES))


WRITERS: dict[str, Callable[[Path, Samples], None]] = {
    "caffe": write_copy,
    "dali": lambda folder, samples: None,  # it reads the folder
    "ffcv": write_copy,
    "hugging-face": write_tables,
    "litdata": write_copy,
    "mosaicml": write_copy,
    "tf-data": write_tfrecords,
    "webdataset": write_tars,
}


def run_ours(snippet: Snippet, folder: Path, monkeypatch: pytest.MonkeyPatch, labels: list[int]) -> None:
    """Run ours; a program opens all samples with their labels, and its loader has a batch."""
    monkeypatch.chdir(folder)
    if snippet.language == "bash":
        type_in(snippet.text)
        return
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(snippet.text, "page", "exec", dont_inherit=True), names)
    dataset, loader = names["dataset"], names["loader"]
    assert isinstance(dataset, FastDataset)
    assert isinstance(loader, FastLoader)
    assert sorted(dataset.targets) == labels
    assert len(loader) == 1
    names.clear()  # an iterator among them ends its threads now, not during another test


@pytest.mark.parametrize("name", PAGES)
def test_ours_on_data_of_the_format(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("iofast.kernel.native", reason="restart markers in kept JPEGs need the native kernel")
    labels = write_images(tmp_path)
    files = sorted(tmp_path.glob("images/train/*/*"))
    WRITERS[name](tmp_path, [(file.read_bytes(), label) for file, label in zip(files, labels, strict=True)])
    for snippet in snippets(name):
        if not snippet.theirs:
            run_ours(snippet, tmp_path, monkeypatch, labels)


@pytest.mark.parametrize("name", PAGES)
def test_form_of_a_page(name: str) -> None:
    text, own = (DOCUMENTS / f"{name}.md").read_text(), ENVIRONMENTS[PAGES[name].environment]
    assert [heading for heading in HEADINGS if f"\n{heading}\n" not in text] == []
    found = snippets(name)
    assert (found[0].section, found[0].theirs) == ("Before", True)
    assert [each.section for each in found if each.language == "python" and not each.theirs] == ["After"]
    (wanted,) = (each for each in (*own.requirements, *own.alone) if each.startswith(f"{PAGES[name].package}=="))
    assert f" {wanted.partition('==')[2]} " in text, "the version that it ran with"


def test_every_page_is_run_and_linked() -> None:
    assert {path.stem for path in DOCUMENTS.glob("*.md")} == set(PAGES) == set(WRITERS)
    for document, place in (("README.md", "docs/coming-from"), ("docs/load.md", "coming-from")):
        text = site.local((ROOT / document).read_text())
        assert [name for name in PAGES if f"]({place}/{name}.md)" not in text] == []
