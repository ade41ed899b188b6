"""Imports only go down (docs/design.md, "Layers"), and starting up costs no torch."""

import ast
import functools
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from loader_sets import photographs, write_folder
from places import ROOT

# A folder counts as one unit. No module may import itself by way of others, inside a unit or elsewhere.
LAYERS = tuple(
    frozenset(units.split())
    for units in (
        "errors option owned record arguments work boxes splitmix version",
        "kernel remote mirror containers order choices meter machine bars batch_memory",
        "source foreign transforms gpu prefetch places",
        "opening record_writer packing checking sheet staging fields selection dataset loader beside bench monitor "
        "run commands",
        "cli __main__",
    )
)
# Sideways: any module may raise an error; arguments refuse names as options do; containers read through the kernel; in
# layer 3 all modules may open containers, the loader runs a dataset, and commands run everything.
SIDEWAYS = {
    **dict.fromkeys(("option", "owned", "record", "work"), frozenset({"errors"})),
    "arguments": {"errors", "option"},
    **dict.fromkeys(("packing", "checking"), frozenset({"opening"})),
    "staging": {"opening", "selection"},
    "remote": {"meter"},
    "mirror": {"kernel", "remote", "meter"},
    "containers": {"kernel", "remote", "mirror", "meter"},
    "__main__": {"cli"},
    "foreign": {"source"},
    "dataset": {"opening", "fields", "selection"},
    "loader": {"opening", "fields", "dataset"},
    "bench": {"beside", "dataset", "loader"},
    "commands": LAYERS[3],
}
TORCH = {"batch_memory", "beside", "fields", "dataset", "loader", "gpu", "prefetch", "run"}
TORCH_INSIDE_FUNCTIONS = {"commands", "meter"}  # doctor reports on torch; a named CUDA device must exist
parsed = functools.cache(ast.parse)
NO_NUMPY_NEEDED = set(sys.stdlib_module_names) | {"numpy", "iofast"}

PACKAGE = ROOT / "iofast"


def layer(unit: str) -> int:
    found = [number for number, units in enumerate(LAYERS) if unit in units]
    assert found, f"iofast/{unit} has no layer: add it to tests/repository/test_layers.py and docs/design.md"
    return found[0]


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(text: str) -> Iterator[tuple[str, int]]:
    """Dotted names of everything imported, and the line: within functions and for the type checker alone, too."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def offences(path: Path, text: str) -> list[str]:
    """Every import in `text` (the source of `path`) that the layers forbid."""
    unit, found = unit_of(path), []
    for name, line in imports(text):
        parts = name.split(".")
        if parts[0] == "iofast" and len(parts) > 1 and parts[1] != unit:
            other = parts[1]
            down = layer(other) < layer(unit) or other in SIDEWAYS.get(unit, ())
            if not down:
                found.append(f"{path.name}:{line}: {unit} imports {other}, which is not below it")
        elif parts[0] == "torch" and unit not in TORCH | TORCH_INSIDE_FUNCTIONS:
            found.append(f"{path.name}:{line}: {unit} imports torch")
        elif layer(unit) == 0 and parts[0] not in NO_NUMPY_NEEDED:
            found.append(f"{path.name}:{line}: {unit} is layer 0 and imports {parts[0]}")
    return found


def test_imports_go_down() -> None:
    sources = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
    assert [offence for path in sources for offence in offences(path, path.read_text())] == []
    assert offences(PACKAGE / "kernel" / "recode.py", "import iofast.source.folder") != []


COMPILED = {"iofast.kernel._native"}


def depends(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Module → the modules that its text imports."""
    found: dict[str, set[str]] = {}
    for module, text in texts.items():
        names = {name if name in texts or name in COMPILED else name.rpartition(".")[0] for name, _ in imports(text)}
        found[module] = names & texts.keys() - {module}
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    graph = depends({name.removesuffix(".__init__"): path.read_text() for path, name in names.items()})
    assert graph["iofast.loader.fast"] >= {"iofast.loader.epochs", "iofast.meter"}
    graphlib.TopologicalSorter(graph).prepare()


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement`."""
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(run.stderr.splitlines()[-1]))


def test_packing_a_folder_needs_neither_torch_nor_obstore(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", photographs(2))
    packing = f"""
import iofast.packing.worker
from iofast import pack, open_reader, open_writer, PackOptions, errors, transforms, watch
pack({str(images)!r}, {str(tmp_path / "out.lmdb")!r}, resize=24, workers=1)"""
    stores = {"obstore", "asyncio", "iofast.remote.store", "iofast.source.objects"}
    assert not loaded_by(packing) & {"torch", "rich", "tqdm", "pyarrow", *stores}


def test_loading_on_a_cpu_loads_nothing_of_the_gpu(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", photographs(2))
    loading = f"""
from iofast import FastDataset, FastLoader
next(iter(FastLoader(FastDataset({str(images)!r}), 2, ragged="list", num_workers=1)))"""
    assert {name for name in loaded_by(loading) if name.startswith("iofast.gpu")} == set()


def test_starting_up_loads_nothing_but_the_standard_library() -> None:
    """So the command starts fast, and gives help and advice at once."""
    help_text = """
import contextlib, iofast.cli
for line in (['--help'], ['pack', '--help'], ['monitor', '--help'], ['pakc']):
    with contextlib.suppress(SystemExit):
        iofast.cli.main(line)"""
    bare = loaded_by("pass")
    package, command = (loaded_by(text) - bare for text in ("import iofast", help_text))
    assert {name for name in package if name.startswith("iofast.")} == set()
    assert {name.partition(".")[0] for name in package | command} - sys.stdlib_module_names == {"iofast"}
