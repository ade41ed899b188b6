"""`pack`: check the arguments, list and plan, then run as a whole or in parts."""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol, overload

from iofast import kernel
from iofast.containers.base import Reader
from iofast.containers.container_suffixes import TFRECORD
from iofast.containers.folder_writer import FolderTarget
from iofast.containers.publish import Target
from iofast.containers.targets import ShardTarget, section_bytes, target_of
from iofast.errors import OptionError, SourceError, TargetError, shown
from iofast.machine import cores
from iofast.opening import is_container, open_reader
from iofast.option import check_effect, check_names, takes_options
from iofast.packing.copying import CopyWork, is_copy
from iofast.packing.inputs import listed, warnings_of
from iofast.packing.options import PackOptions
from iofast.packing.pack_run import PackRun
from iofast.packing.parts import PackParts
from iofast.packing.plan import PackPlan, settings
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.packing.work import PackWork
from iofast.remote.urls import is_url, require_text

FilePath = str | os.PathLike[str]
Sources = FilePath | Sequence[FilePath]


_P = ParamSpec("_P")


class _Pack(Protocol[_P]):
    """The type of `pack`: it takes a `PackOptions`, or the parameters of `PackOptions`."""

    @overload
    def __call__(self, source: Sources, target: FilePath, options: PackOptions, **keywords: Any) -> PackReport: ...
    @overload
    def __call__(self, source: Sources, target: FilePath, *args: _P.args, **keywords: _P.kwargs) -> PackReport: ...


def _typed_by(options: Callable[_P, PackOptions]) -> Callable[[Callable[..., PackReport]], _Pack[_P]]:
    return partial(takes_options, options)


@_typed_by(PackOptions)
def pack(source: Sources, target: FilePath, options: PackOptions | None = None, **keywords: Any) -> PackReport:
    """Pack the images of `source` into the container `target`; its suffix selects the format.

    `source` is a folder, a manifest file, or a container that `open_reader` opens, including those of other programs
    and patterns of shards. Folder and manifest, and paths in a manifest, may be URLs of object stores. A list of
    sources is packed as one, in this order, with classes united by their names. Options are a `PackOptions`, or its
    fields as keywords, or both (keywords take precedence). Images that fail are listed in `<target>.errors.jsonl` and
    leave holes in the keys. The same call resumes an interrupted run. Raises `SourceError`, `TargetError`,
    `OptionError`; `StorageError` if an object store fails; `ErrorBudgetError` when more images fail than `max_errors`.
    """
    for what, path in (*(("source", path) for path in _listed(source)), ("target", target)):
        if not isinstance(path, str | os.PathLike):
            raise OptionError(f"{what} must be a path, found {shown(path)}")
    check_names("pack", PackOptions, keywords)
    options = PackOptions(**keywords) if options is None else replace(options, **keywords)
    progress = PackProgress(visible=options.progress)
    idle = options.on is not None or options.finish
    with WorkerPool(cores() if options.workers is None else options.workers, idle=idle) as pool:
        report = run(source, target, options, progress, pool)
    if progress.visible and report.next_step:
        print(f"next: {report.next_step}", file=sys.stderr)  # noqa: T201 - asked for by `progress`
    return report


def pack_part(source: Sources, target: FilePath, number: int, total: int, **options: Any) -> PackReport:
    """Pack part `number` of `total`, from 1, on this machine: the same as `pack` with `part="number/total"`.

    For any scheduler whose machines all see `source` and `target`. Parts may be packed in any order, at the same time,
    and more than once. `pack` with `finish=True` joins them. `options` are those of `pack`, the same for every part.
    """
    return pack(source, target, **options, part=f"{number}/{total}")


def run(
    source: Sources, target: FilePath, options: PackOptions, progress: PackProgress, pool: WorkerPool
) -> PackReport:
    """`pack` with a progress display and a pool whose workers are starting already."""
    require_text(target)
    sources = [os.fspath(path) for path in _listed(source)]
    in_parts = options.part is not None or options.finish or options.on is not None
    kind: type[PackRun] = PackParts if in_parts else PackRun
    with contextlib.ExitStack() as stack:
        if is_url(target):
            from iofast.packing.store_target import StoreTarget  # here: local targets need no object stores
            from iofast.packing.to_store import StoreRun, work_folder

            kind, folder = StoreRun, stack.enter_context(work_folder())
            destination: Target = StoreTarget(os.fspath(target), folder, options)
        else:
            destination = target_of(target, overwrite=options.overwrite)
        _check(sources, options, destination)
        if not destination.interrupted:
            destination.check_free()
        planned: Callable[[], PackWork | CopyWork] = partial(_planned, sources, destination, options, progress)
        if kind is PackRun and is_copy(options) and len(sources) == 1 and is_container(sources[0]):
            reader = stack.enter_context(open_reader(sources[0], options.foreign))
            planned = partial(_copying, reader, sources[0], destination, options, progress)
        packing = kind(sources, destination, options, planned, pool, progress)
        if isinstance(packing, PackParts) and options.on is not None:
            from iofast.packing.on_ray import pack_on_ray  # here: no other run needs it

            return pack_on_ray(packing, run)
        return packing.forecast() if options.dry_run else packing.run()


def _planned(sources: Sequence[str], target: Target, options: PackOptions, progress: PackProgress) -> PackWork:
    """Plan the work from the present source and target."""
    images = listed(sources, options, target)
    for warning in (*images.warnings, *options.sample_recipe().check_fields(images.fields, images.columns)):
        progress.warn(warning)  # from this depth, so that the warning names the caller of `pack`
    plan = PackPlan(len(images), images.splits, images.fingerprint(), settings(options, target))
    return PackWork(sources, images, options, plan)


def _copying(reader: Reader, source: str, target: Target, options: PackOptions, progress: PackProgress) -> CopyWork:
    """The copying of all records of a reader."""
    work = CopyWork(reader, source, target, options)
    for warning in warnings_of(reader):
        progress.warn(warning)  # from this depth, so that the warning names the caller of `pack`
    return work


def _listed(source: Sources) -> list[FilePath]:
    """The sources, of one or several."""
    found: list[Any] = list(source) if isinstance(source, list | tuple) else [source]
    if not found:
        raise OptionError("source must be a path or a list of paths, found an empty list")
    return found


def _check(given: Sequence[str], options: PackOptions, target: Target) -> None:
    """Raise for sources and options that do not fit the target."""
    if "" in given:  # `Path` would take it for the current folder
        raise SourceError("the source is empty: expected a folder, a manifest or a container, found ''")
    target.check_folder()
    for source in (Path(os.path.abspath(path)) for path in given):
        if source.is_dir() and source.resolve() in target.path.resolve().parents:
            raise TargetError(
                f"{target.path} lies inside the source {source}: the next scan would find it; put it outside"
            )
    recipe = options.recipe()
    section_bytes(options.shard_size, target)
    if (records := options.shard_records) is not None:
        fits = isinstance(target, ShardTarget)
        check_effect(f"shard_records={records}", fits, "a target of shards", target.path.name)
    if base := options.label_base:
        fits = target.path.suffix in TFRECORD
        check_effect(f"label_base={base}", fits, "a target of TFRecords", target.path.name)
    if isinstance(target, FolderTarget) and (options.part is not None or options.finish or options.on is not None):
        raise OptionError(
            f"a folder of files is not packed in parts: expected an LMDB file or shards, found {target.path.name}/; "
            "leave out part, finish and on"
        )
    if kernel.backend != "native":
        from iofast.kernel.without_native import check_recipe

        check_recipe(recipe)
