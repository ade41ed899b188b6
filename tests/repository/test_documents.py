"""Documents: their Python runs as a reader types it, their tables are the code's, their links hold in the site."""

import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import arrow_tables
import pytest
import tfrecord_messages
from command_line import type_in
from places import ROOT
from tar_sets import foreign

from iofast import FastDataset, FastLoader, open_writer, order, pack, transforms
from iofast.order import Mode
from tools import option_tables, site
from tools.interop import pages
from tools.interop.environments import ENVIRONMENTS
from tools.interop.pages import CLASSES, PAGES, Snippet, snippets, write_images

SPECIFICATIONS = {"format.md", "design.md", "map.md"}  # their fragments are no programs
TUTORIAL = ROOT / "docs" / "tutorial.md"  # has commands between its programs
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if path.name not in SPECIFICATIONS and path != TUTORIAL
]


def programs() -> Iterator[tuple[str, str]]:
    """Name and program (all Python blocks) of each document that has Python."""
    for path in DOCUMENTS:
        blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        if blocks:
            yield path.name, "\n".join(blocks)


@pytest.mark.parametrize("name", option_tables.PAGES)
def test_tables_of_options_are_those_of_the_code(name: str) -> None:
    text = (ROOT / name).read_text()
    assert option_tables.page(text) == text, "python -m tools.option_tables"
    assert "<!-- options: " in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's data: images/ in splits and classes; out.lmdb and imagenet.lmdb of them."""
    root = tmp_path_factory.mktemp("documents")
    pages.write_images(root)
    for name in ("out.lmdb", "imagenet.lmdb"):
        pack(root / "images", root / name, resize=256)
    return root


@pytest.mark.parametrize(("name", "program"), list(programs()), ids=[name for name, _ in programs()])
def test_python_in_documents_runs(
    name: str, program: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    if "pack(" in program:
        (tmp_path / "out.lmdb").unlink()  # the program makes it
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(program, name, "exec", dont_inherit=True), names)
    names.clear()  # an iterator among them ends its threads now, not during another test


def test_tutorial(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and programs in turn, as a reader types them; the first program is torchvision's."""
    shutil.copytree(folder / "images", tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "__main__"}
    assert [language for language, _ in blocks].count("bash") == 2
    for language, text in blocks:
        if language == "bash":
            lines = [line for line in text.splitlines() if not line.startswith("pip ")]
            type_in("\n".join(lines).replace("iofast bench ", "iofast bench --seconds=0.1 "))
        elif "torchvision" not in text or importlib.util.find_spec("torchvision"):
            exec(compile(text, TUTORIAL.name, "exec", dont_inherit=True), names)
    names.clear()


def test_figures_of_the_tutorial_are_on_the_page_that_it_links() -> None:
    figures = re.findall(r"[\d.]+×", TUTORIAL.read_text())
    results = (ROOT / "benchmarks" / "results" / "rivals.md").read_text()
    assert figures
    assert [figure for figure in figures if figure not in results] == []


def test_every_option_of_loading_is_documented() -> None:
    reference = (ROOT / "docs" / "load-reference.md").read_text()
    names = {*inspect.signature(FastLoader).parameters, *inspect.signature(FastDataset).parameters}
    assert [name for name in sorted(names - {"dataset", "unknown"}) if f"`{name}`" not in reference] == []
    modes = [name for name in order.__all__ if inspect.isclass(mode := getattr(order, name)) and issubclass(mode, Mode)]
    plain = {"Sequential", "Shuffled", "Mode"}  # these are chosen with shuffle=
    assert [name for name in modes if name not in plain and f"`{name}(" not in reference] == []
    inner = {"Pipeline", "Transform", "compile"}  # not for users
    listed = (ROOT / "docs" / "transforms.md").read_text()
    assert [name for name in transforms.__all__ if name not in inner and f"`T.{name}" not in listed] == []


def test_files_of_the_map_exist() -> None:
    text = (ROOT / "docs" / "map.md").read_text()
    rows = re.findall(r"^\| (?!change|---)(.*?) \| (.*) \|$", text, re.MULTILINE)
    named = [(what, name) for what, files in rows for name in re.findall(r"`([\w/]+\.(?:py|[ch]|md))`", files)]
    assert len(named) > 40
    missing = []
    for what, name in named:
        places = [ROOT / "iofast" / name, ROOT / name, *(ROOT / "iofast" / "monitor" / "advice").glob(name)]
        missing += [] if any(place.is_file() for place in places) else [(what, name)]
    assert missing == []


def test_links_hold(tmp_path: Path) -> None:
    site.stage(tmp_path)
    assert list(site.missing(tmp_path)) == []
    assert "[train.py](train.py): Train an image classifier" in (tmp_path / "examples" / "index.md").read_text()
    logs = [*tmp_path.glob("benchmarks/results/torture-*.md")]
    assert all(log.read_text().startswith("---\nsearch: {exclude: true}\n---\n# ") for log in logs)
    (tmp_path / "docs" / "faq.md").write_text("[nowhere](nothing.md#there)")
    assert list(site.missing(tmp_path)) == ["docs/faq.md: nothing.md"]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/.-]+\.md)$", site.CONFIGURATION.read_text(), re.MULTILINE))
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "notes"}
    assert pages <= listed


def test_links_of_the_readme_work_elsewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.findall(r"(?:\]\(|src=\"|srcset=\")((?!https://)[^)\"]+)", text) == []
    assert re.findall(r"^repo_url: (.*)", site.CONFIGURATION.read_text(), re.MULTILINE) == [
        site.PROJECT["urls"]["Repository"]
    ]


def test_code_is_as_wide_as_the_site() -> None:
    """80 columns; outputs of programs are wrapped."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        blocks = re.findall(r"^```(?:python|py|bash|diff)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines() if len(line) > 80]
        assert lines == [], page.name


@pytest.mark.skipif(not (site.ENVIRONMENT.folder / ".installed").exists(), reason="`make docs` installs mkdocs")
def test_it_builds_without_a_warning() -> None:
    ended = subprocess.run([sys.executable, "-m", "tools.site"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


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
    text, own = (pages.DOCUMENTS / f"{name}.md").read_text(), ENVIRONMENTS[PAGES[name].environment]
    assert [heading for heading in HEADINGS if f"\n{heading}\n" not in text] == []
    found = snippets(name)
    assert (found[0].section, found[0].theirs) == ("Before", True)
    assert [each.section for each in found if each.language == "python" and not each.theirs] == ["After"]
    (wanted,) = (each for each in (*own.requirements, *own.alone) if each.startswith(f"{PAGES[name].package}=="))
    assert f" {wanted.partition('==')[2]} " in text, "the version that it ran with"


def test_every_page_is_run_and_linked() -> None:
    assert {path.stem for path in pages.DOCUMENTS.glob("*.md")} == set(PAGES) == set(WRITERS)
    for document, place in (("README.md", "docs/coming-from"), ("docs/load.md", "coming-from")):
        text = site.local((ROOT / document).read_text())
        assert [name for name in PAGES if f"]({place}/{name}.md)" not in text] == []
