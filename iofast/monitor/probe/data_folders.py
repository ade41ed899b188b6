"""Where the data lies: by the files that workers have open, and by how the program makes its DataLoader.

Its source is parsed as text and never run.
"""

import ast
import contextlib
import os
import re
import stat
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import PurePosixPath
from statistics import median
from typing import Final

from iofast.containers.container_suffixes import OF_OTHERS, WRITTEN
from iofast.monitor.probe.loops import Feeds, called, tree_of
from iofast.monitor.probe.states import command_line, folder, interpreted
from iofast.monitor.snapshot import LoaderSource

IMAGES: Final = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".heic", ".avif"))
_DATA: Final = IMAGES.union((*WRITTEN, *OF_OTHERS, ".parquet", ".jsonl", ".arrow", ".sqlite", ".db", ".bin", ".dat"))
_ELSEWHERE: Final = ("/proc/", "/dev/", "/sys/", "/usr/", "/lib", "/etc/", "/run/", "/snap/")
_NOT_DATA: Final = ("/site-packages/", "/dist-packages/", "/.cache/torch", "/.triton/", "torchinductor_", ".log")
_MOST: Final = 256  # descriptors of one process that are looked at
_EAGER, _SELDOM = 16, 5  # intervals with a glimpse; later ones, of which one in five has one, rarely find anything new
_FOLDERS: Final = 128
_ENTRIES: Final = 24  # of a folder that are looked at
_SIZES: Final = 256
_SIDE = re.compile(r"\b(?:RandomResizedCrop|RandomCrop|CenterCrop|Resize|resize)\(\s*[(\[]?\s*(\d{2,4})\b")
_ROOTS = ("root", "folder", "data_dir", "path")  # keywords for the folder of a data set


class DataFolders:
    """Folders of data files seen so far, and the sizes of the images."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._images = set[str]()  # those folders that have images
        self._sizes: deque[int] = deque(maxlen=_SIZES)
        self._turn = 0
        self._job_root = ""

    @property
    def folder(self) -> str | None:
        """The folder with most of the data files; one of images, if any were seen: those can be packed."""
        return max(self._seen, key=lambda path: (path in self._images, self._seen[path]), default=None)

    def image_root(self, named: str, given: Sequence[str] = ()) -> str | None:
        """The folder of all images, for packing; None if that is not certain.

        `named`: the folder in the program's source; a path `given` in its command may be one, too.
        """
        if not self._seen:  # files are open for a moment only
            roots = [path for path in ([named] if named else given) if _has_classes(f"{self._job_root}{path}")]
            return roots[0] if len(roots) == 1 else None
        seen = [path for path in self._seen if path in self._images]
        around = (root for root in (named, *given) if root and any(_is_in(path, root) for path in seen))
        return max(around, key=len, default=None)

    @property
    def image_bytes(self) -> int | None:
        """The median size of images seen open."""
        return round(median(self._sizes)) if self._sizes else None

    def glimpse(self, pids: Sequence[int]) -> None:
        """Look at one of the processes, in turn."""
        self._turn += 1
        if not pids or (self._turn > _EAGER and self._turn % _SELDOM):
            return
        process = folder(pids[self._turn % len(pids)])
        self._job_root = f"{process}/root"
        with contextlib.suppress(OSError):
            for name in os.listdir(process / "fd")[:_MOST]:
                with contextlib.suppress(OSError):
                    self._look(f"{process}/fd/{name}")
        if len(self._seen) > _FOLDERS:
            self._seen = Counter(dict(self._seen.most_common(_FOLDERS // 2)))

    def _look(self, link: str) -> None:
        path = os.readlink(link)
        suffix, where = PurePosixPath(path).suffix.lower(), os.path.dirname(path)
        if not path.startswith("/") or path.startswith(_ELSEWHERE) or suffix not in _DATA:
            return
        status = os.stat(link)  # through the link: the job may have mounted other file systems
        if any(part in path for part in _NOT_DATA) or not stat.S_ISREG(status.st_mode):
            return
        self._seen[where] += 1
        if suffix in IMAGES:
            self._sizes.append(status.st_size)
            self._images.add(where)


def _is_in(path: str, root: str) -> bool:
    return f"{path}/".startswith(root.rstrip("/") + "/")


@lru_cache(_FOLDERS)  # by a path below the job's root
def _has_classes(path: str) -> bool:
    """Whether several folders in it hold images, or folders of images: classes, or splits."""
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return sum(_holds_images(one.path, below=True) for one in islice(entries, _ENTRIES)) > 1
    return False


def _holds_images(path: str, *, below: bool = False) -> bool:
    """Whether a folder holds images; with `below`, a folder in it may hold them."""
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return any(
            os.path.splitext(one.name)[1].lower() in IMAGES or (below and _holds_images(one.path))
            for one in islice(entries, _ENTRIES)
        )
    return False


# --- by the program's source and command


def program_of(pid: int) -> tuple[LoaderSource | None, list[str]]:
    """The DataLoader in the script that a process runs, and the words of its command that may be paths.

    The first is None if the script cannot be read, or makes no DataLoader. Relative paths, also in `--data=images`, are
    below the process's folder.
    """
    words = command_line(pid).decode(errors="replace").split("\0")
    try:
        here = os.readlink(folder(pid) / "cwd")
    except OSError:
        return None, []
    real = PurePosixPath(os.path.realpath(here))
    values = (word.rpartition("=")[2] for word in words)
    paths = {word: os.path.realpath(os.path.join(here, word)) for word in values if word}  # as open files are named
    named = [path for word, path in paths.items() if word.startswith("/") or real in PurePosixPath(path).parents]
    script = interpreted(words)
    found = parsed("\n".join(Feeds(pid).read(os.path.join(here, script)))) if script.endswith(".py") else None
    if found is not None and found.root:
        found = replace(found, root=os.path.realpath(os.path.join(here, os.path.expanduser(found.root))))
    return found, named


def parsed(text: str) -> LoaderSource | None:
    """The DataLoader in the text of a script: of several, the one for training."""
    made = list(_made(tree := tree_of(text)))
    loaders = [one for one in made if called(one[1]) == "DataLoader"]
    if not loaders:
        return None
    training = (one for one in loaders if "train" in f"{one[0]} {ast.unparse(one[1])}".lower())
    name, call = next(training, loaders[0])
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    options |= dict(zip(("dataset", "batch_size", "shuffle", "sampler"), call.args, strict=False))
    dataset = options.get("dataset")
    own = isinstance(dataset, ast.Name | ast.Attribute)
    source = ast.unparse(dataset) if own and dataset is not None else "dataset"
    maker = dataset if isinstance(dataset, ast.Call) else next((one for to, one in made if to == source), None)
    side = _SIDE.search(text)
    return LoaderSource(
        loader=name or "loader",
        dataset=source,
        batch_size=ast.unparse(options["batch_size"]) if "batch_size" in options else "1",
        shuffle=_is_set(options.get("shuffle")) or _is_set(options.get("sampler")),
        drop_last=_is_set(options.get("drop_last")),
        side=224 if side is None else int(side[1]),
        root="" if maker is None else _root(maker, tree),
    )


def _made(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Calls whose value gets a name or is returned, with that name or "", in order."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return) and isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else getattr(node, "target", None)
            target = targets[0] if isinstance(targets, list) else targets
            yield ("" if target is None else ast.unparse(target)), node.value


def _is_set(option: ast.expr | None) -> bool:
    return option is not None and not (isinstance(option, ast.Constant) and not option.value)


def _root(call: ast.Call, tree: ast.Module) -> str:
    """The folder that a data set is made of, if it is written in the source."""
    named = [keyword.value for keyword in call.keywords if keyword.arg in _ROOTS]
    folder = next(iter((*named, *call.args)), None)
    if isinstance(folder, ast.Name):
        name = folder.id
        values = (node for node in tree.body if isinstance(node, ast.Assign))
        folder = next((node.value for node in values if ast.unparse(node.targets[0]) == name), None)
    return folder.value if isinstance(folder, ast.Constant) and isinstance(folder.value, str) else ""
