"""Resume what a killed run left in `<DST>.partial/`, and try failed images again."""

from __future__ import annotations

from iofast.containers.base import Writer
from iofast.containers.journal import read_block
from iofast.containers.publish import Target
from iofast.containers.shards import ShardCut
from iofast.containers.targets import writer_of
from iofast.packing.build import Builder
from iofast.packing.failures import Failures
from iofast.packing.pack_work import PackWork
from iofast.packing.pool import WorkerPool


def begin(work: PackWork, place: Target, pool: WorkerPool, failures: Failures) -> tuple[Writer, Builder]:
    """Return a writer and its builder with all records that are written already, and find other finished chunks.

    Images that failed before are tried again. If one now succeeds, records behind its position are written again, so
    that the bytes are those of a run without interruption.
    """
    writer, builder = _begin(work, place, pool, None)
    try:
        mended = _try_again(work, place, pool, failures, builder)
        if mended:
            writer.abort()
            writer, builder = _begin(work, place, pool, min(mended))
        work.again = len(builder.holes)
        work.find_finished(place.partial, builder.next, remove=writer.resumes)
    except BaseException:
        writer.abort()
        raise
    return writer, builder


def _begin(work: PackWork, place: Target, pool: WorkerPool, stop: int | None) -> tuple[Writer, Builder]:
    writer, builder = new_builder(work, place, pool)
    try:
        builder.resume(stop)
    except BaseException:
        writer.abort()
        raise
    return writer, builder


def new_builder(work: PackWork, place: Target, pool: WorkerPool) -> tuple[Writer, Builder]:
    """Return a writer and its builder, without a record."""
    place.stage().unlink(missing_ok=True)  # an LMDB file is always built from the start
    starts = tuple(work.first + start for _, start, _ in work.source.splits)
    cut = ShardCut(records=work.plan.shard_records, starts=starts)
    writer = writer_of(place, work.description(), cut, work.key_width)
    return writer, Builder(writer, work, pool.journals)


def _try_again(work: PackWork, place: Target, pool: WorkerPool, failures: Failures, builder: Builder) -> list[int]:
    """Positions of images that failed in an earlier run and can be packed now."""
    holes = builder.holes
    size = max(1, min(work.plan.chunk, -(-len(holes) // (2 * work.workers))))
    numbers = range(0, len(holes), size)
    # chunk numbers beyond those of the plan
    jobs = (work.job(work.plan.chunks + at, holes[at : at + size]) for at in numbers)
    mended = []
    for done in pool.results(work.setup(), place.partial, jobs) if holes else ():
        for failure in work.failures(done):
            failures.add(failure)
        records = read_block(done.journal, done.offset).records
        mended += [record.position for record in records]
    return mended
