"""How a program makes its DataLoader: names and options in its source, which is parsed as text and never run."""

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import replace

from iofast.monitor.probe.loops import Feeds, called
from iofast.monitor.probe.states import command_line, folder, interpreted
from iofast.monitor.snapshot import LoaderSource

_SIDE = re.compile(r"\b(?:RandomResizedCrop|RandomCrop|CenterCrop|Resize|resize)\(\s*[(\[]?\s*(\d{2,4})\b")
_ROOTS = ("root", "folder", "data_dir", "path")  # keywords for the folder of a data set
_Made = tuple[str, ast.Call]  # the name that a call's value gets, "" if none, and the call


def loader_source(pid: int) -> LoaderSource | None:
    """Of the script that a process runs; None if it cannot be read, or makes no DataLoader."""
    script = interpreted(command_line(pid).decode(errors="replace").split("\0"))
    try:
        here = os.readlink(folder(pid) / "cwd")
    except OSError:
        return None
    found = parsed("\n".join(Feeds(pid).read(os.path.join(here, script)))) if script.endswith(".py") else None
    if found is None or not found.root:
        return found
    root = os.path.realpath(os.path.join(here, os.path.expanduser(found.root)))  # as open files are named
    return replace(found, root=root)


def named_paths(pid: int) -> list[str]:
    """The words of a process's command that may be paths, also `--data=images`: relative ones below its own folder."""
    try:
        here = os.path.realpath(os.readlink(folder(pid) / "cwd"))
    except OSError:
        return []
    words = (word.rpartition("=")[2] for word in command_line(pid).decode(errors="replace").split("\0"))
    paths = {word: os.path.realpath(os.path.join(here, word)) for word in words if word}  # as open files are named
    return [path for word, path in paths.items() if word.startswith("/") or path.startswith(here.rstrip("/") + "/")]


def parsed(text: str) -> LoaderSource | None:
    """The DataLoader in the text of a script: of several, the one for training."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    made = list(_made(tree))
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


def _made(tree: ast.Module) -> Iterator[_Made]:
    """Calls whose value gets a name or is returned, in order."""
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
