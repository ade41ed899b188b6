"""`make docs`: the Markdown of this repository as a site in build/site; any broken link is an error.

Pages are copied to build/site-source in the repository's own folders, so that their links hold there too. A link to a
folder leads to a list of its files. mkdocs runs in an environment of its own, and reads docstrings without importing
iofast, so torch is not needed.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.environments import ROOT, Environment

CONFIGURATION = ROOT / "docs" / "mkdocs.yml"
SOURCE = ROOT / "build" / "site-source"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = Environment(ROOT / "build" / "site-environment", tuple(PROJECT["optional-dependencies"]["docs"]))
PARTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "licenses", "docs", "examples", "benchmarks/results")

_REPOSITORY = PROJECT["urls"]["Repository"]
_HERE = re.compile(
    f"{_REPOSITORY}/(?:blob|tree)/main/|{_REPOSITORY.replace('//github', '//raw.githubusercontent')}/main/"
)
_LINK = re.compile(r"(?<=\]\()[^)\s#:]+(?=[)#])")  # of Markdown, within the repository
_SKIPPED = shutil.ignore_patterns("__pycache__", CONFIGURATION.name)


def stage(target: Path = SOURCE) -> None:
    """Copy all pages and the files that they link to into the folder `target`, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    for part in PARTS:
        source, copy = ROOT / part, target / part
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=_SKIPPED)
        else:
            shutil.copy(source, copy)
    for page in [*target.rglob("*.md")]:
        text = _LINK.sub(lambda found, folder=page.parent: linked(found[0], folder), local(page.read_text()))
        is_log = page.name.startswith("torture-")
        page.write_text(f"---\nsearch: {{exclude: true}}\n---\n{text}" if is_log else text)


def local(text: str) -> str:
    """A page of the root with links to files of the repository instead of their addresses on the web."""
    return _HERE.sub("", text)


def linked(link: str, folder: Path) -> str:
    """A link of a page in `folder`; one to a folder leads to the list of its files, which is written if needed."""
    place = folder / link
    if not place.is_dir():
        return link
    if not (place / "index.md").exists():
        files = [path for path in sorted(place.iterdir()) if path.is_file()]
        rows = [f"- [{path.name}]({path.name}): {first_line(path)}\n" for path in files]
        (place / "index.md").write_text("".join([f"# {place.resolve().name.capitalize()}\n\n", *rows]))
    return f"{link.rstrip('/')}/index.md"


def first_line(path: Path) -> str:
    """The title of a page, or the first line of a program's docstring or comments."""
    lines = path.read_text().splitlines()
    return next((line.strip('"# ') for line in lines if not line.startswith("#!") and line.strip('"# ')), "")


def missing(target: Path = SOURCE) -> Iterator[str]:
    """Links of the staged pages that lead nowhere."""
    for page in sorted(target.rglob("*.md")):
        for link in _LINK.findall(page.read_text()):
            if not (page.parent / link).exists():
                yield f"{page.relative_to(target)}: {link}"


def main() -> int:
    stage()
    command = [ENVIRONMENT.python(), "-m", "mkdocs", "build", "--config-file", CONFIGURATION]
    (version,) = re.findall(r'__version__ = "(.*)"', (ROOT / "iofast" / "version.py").read_text())
    own = {"IOFAST_SITE": f"iofast {version}", "NO_MKDOCS_2_WARNING": "1"}  # the second hides an advertisement
    return subprocess.run(command, env=os.environ | own).returncode


if __name__ == "__main__":
    sys.exit(main())
