"""What a loader's worker is at, by the functions it is in: a pure classification.

The innermost call that is known decides; a decode that PIL puts off until the resize is a decode. Where that is a line
of the user's own that called into C, its text is asked, and last the names of the user's functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from iofast.monitor.probe.calls import Call, Text
from iofast.monitor.snapshot import WorkerTask

Table = tuple[tuple[WorkerTask, re.Pattern[str]], ...]

# A forked worker has the training's own calls below these. torchdata's nodes run theirs in threads, too.
_LOOPS = re.compile(
    r"torch/utils/data/_utils/worker\.py:_worker_loop$|iofast/prefetch/.*:_work$"
    r"|torchdata/.*:(_worker_loop|_apply_udf|_populate_queue|_pin_memory_loop)$"
)
_CHILD = re.compile(
    r"std/multiprocessing/process\.py:(run|_bootstrap)$|std/concurrent/futures/\w+\.py:(_process_worker|_worker)$"
)
_WAIT = re.compile(
    r"std/(threading|selectors|queue)\.py:|std/multiprocessing/(connection|queues|synchronize)\.py:(_poll|poll|wait|_recv|get|__enter__)$"
)
_COLLATE = re.compile(r"torch/utils/data/_utils/collate\.py:|.*:\w*collat(e|ion)\w*$")
_READS = re.compile(r"\bread\(")
_ATTENDANT = re.compile(r"std/multiprocessing/(resource_tracker|forkserver)\.py$")
_COLLATING = re.compile(r"[cC]ollat(e|or|ion)")  # a class that collates
_PIN_LOOP = "torch/utils/data/_utils/pin_memory.py"
_FEEDING = re.compile(
    r"std/multiprocessing/(connection|reduction)\.py:|torch/multiprocessing/reductions\.py:|std/multiprocessing/queues\.py:put$"
)
_QUEUES = re.compile(r"std/(multiprocessing/queues|queue)\.py$")

_LIBRARIES: Table = (  # of file:function
    (WorkerTask.SEND, _FEEDING),
    (WorkerTask.PIN, re.compile(r"torch/utils/data/_utils/pin_memory\.py:")),
    (WorkerTask.COLLATE, re.compile(r"iofast/(loader/assemble|gpu/batch_memory)\.py:")),
    (
        WorkerTask.RESIZE,
        re.compile(
            r"(PIL|torchvision|albumentations|kornia|cv2|skimage|imgaug|monai|torch|tensorflow|mmcv|detectron2)[/.].*:"
            r"_?(\w*resize\w*|thumbnail|reduce|rescale|interpolate|resample|\w*letterbox\w*)$"
        ),
    ),
    (
        WorkerTask.READ,
        re.compile(
            r"(lmdb|h5py|zarr|requests|urllib3|boto3|botocore|s3fs|fsspec|gcsfs|aiohttp|google/cloud|pyarrow|netCDF4|tensorstore)/"
            r"|std/(tarfile|zipfile\w*|socket|ssl|http/client|urllib/.*|gzip|lzma|bz2|shutil|subprocess)\.py:|std/zipfile/"
            r"|std/pathlib\w*(/.*)?\.py:(open|read_bytes|read_text|stat)|numpy/lib/(npyio|_npyio_impl|_format_impl|format)\.py:"
            r"|webdataset/(gopen|tariterators|cache|handlers|filters)\.py:(gopen|url_opener|tar_file_\w+|read\w*|open\w*|stream)"
            r"|iofast/(containers|source)/|torch/serialization\.py:_?load"
        ),
    ),
    (
        WorkerTask.AUGMENT,
        re.compile(
            r"torchvision/(transforms|tv_tensors)/|albumentations/|albucore/|kornia/|imgaug/|monai/transforms/|torchaudio/transforms/"
            r"|skimage/(?!io)|scipy/ndimage/|PIL/Image(Enhance|Ops|Filter|Chops|Transform)\.py:|iofast/(transforms|pixels)/"
            r"|PIL/Image\.py:(transpose|rotate|filter|point|crop|_crop|paste|transform|blend|composite|effect_\w+|__array_interface__|tobytes)$"
        ),
    ),
    (
        WorkerTask.DECODE,
        re.compile(
            r"PIL/|torchvision/io/|turbojpeg\.py:|simplejpeg/|imageio/|decord/|av/|torchcodec/|nvidia/nvimgcodec/|skimage/io/|tifffile/"
            r"|jpeg4py/|rawpy/|pydicom/|cv2/|accimage/|soundfile\.py:|librosa/|webdataset/autodecode\.py:|iofast/(kernel/|gpu/decode/|loader/(samples|canvas|singly|batches))"
        ),
    ),
)
_LINES: Table = (  # of the text of a line that called into C
    (
        WorkerTask.DECODE,
        re.compile(
            r"imdecode|imread|Image\.open|read_image|decode_(jpeg|image|png)|\.convert\(|\.load\(\)|[dD]ecod\w*\("
        ),
    ),
    (WorkerTask.RESIZE, re.compile(r"\bresize|\.(thumbnail|interpolate|reduce)\(|INTER_(LINEAR|AREA|CUBIC)")),
    (
        WorkerTask.READ,
        re.compile(
            r"\bopen\(|\.(read\w*|recv\w*|pread|download\w*|fetch\w*)\(|np\.(load|fromfile|memmap)|\b(txn|cursor)\.get\("
            r"|torch\.load"
        ),
    ),
    (WorkerTask.COLLATE, re.compile(r"(torch|np)\.(stack|cat|concatenate)\(|pad_sequence")),
    (
        WorkerTask.AUGMENT,
        re.compile(
            r"flip|rotat|crop|jitter|normali[sz]e|blur|noise|warp|cvtColor|from_numpy"
            r"|\.(astype|permute|transpose|float|div_?|sub_?)\("
        ),
    ),
)
_NAMES: Table = (  # of the user's functions
    (WorkerTask.DECODE, re.compile(r"decode|imread|parse_image|to_image|load_image|open_image", re.IGNORECASE)),
    (WorkerTask.RESIZE, re.compile(r"resize|rescale|letterbox|downsample", re.IGNORECASE)),
    (WorkerTask.AUGMENT, re.compile(r"augment|transform|jitter|flip|crop|normali[sz]e|preprocess", re.IGNORECASE)),
    (WorkerTask.READ, re.compile(r"(^|_)(read|load|fetch|download|open|get_bytes)", re.IGNORECASE)),
)


def work_of(calls: Sequence[Call], text: Text) -> WorkerTask:
    """What a worker with these calls, the innermost first, is at."""
    inner = _within_the_loop(calls)
    if _starved(inner):
        return WorkerTask.STARVED
    if any(_COLLATE.match(_at(c)) or (c.name == "__call__" and _COLLATING.search(c.owner)) for c in inner):
        return WorkerTask.COLLATE
    for place, c in enumerate(inner):
        work = _by_user(c, text(c) if place == 0 else "") if c.user else _by_library(c)
        if work is WorkerTask.DECODE and not c.user and _READS.search(text(c)):
            work = WorkerTask.READ  # PIL reads as it decodes
        if work is not None:
            return work
    return WorkerTask.OTHER


def pin_work(calls: Sequence[Call]) -> WorkerTask | None:
    """PIN for a pin thread that has a batch in hand; None for one that waits, and for other threads."""
    if not any(c.where == _PIN_LOOP and c.name == "_pin_memory_loop" for c in calls):
        return None
    return None if _WAIT.match(_at(calls[0])) else WorkerTask.PIN


def feeds(calls: Sequence[Call]) -> bool:
    """Whether this is the thread that pickles a worker's batches and writes them to its pipe, and is at it."""
    return any(c.name == "_feed" and _QUEUES.match(c.where) for c in calls) and not _WAIT.match(_at(calls[0]))


def parked(calls: Sequence[Call]) -> bool:
    """Whether a thread of FastLoader is not wanted for now."""
    return any(c.where == "iofast/prefetch/jobs.py" and c.name == "task" for c in calls) and calls[0].name != "task"


def attends(calls: Sequence[Call]) -> bool:
    """Whether this is a process that multiprocessing keeps beside the workers, and no worker."""
    return any(_ATTENDANT.match(c.where) for c in calls[-3:])


def works(calls: Sequence[Call]) -> bool:
    """Whether a thread is in the loop of a loader's workers."""
    return any(_LOOPS.match(_at(c)) for c in calls)


def _at(c: Call) -> str:
    return f"{c.where}:{c.name}"


def _within_the_loop(calls: Sequence[Call]) -> Sequence[Call]:
    for loop in (_LOOPS, _CHILD):
        place = next((place for place, c in enumerate(calls) if loop.match(_at(c))), None)
        if place is not None:
            return calls[:place]
    return calls


def _starved(inner: Sequence[Call]) -> bool:
    """In the queue of what is to be done, or waiting for room for what was, called by the loop itself."""
    if inner and inner[-1].where == "iofast/prefetch/jobs.py" and inner[-1].name == "task":
        return True
    waits = any(
        (c.name == "get" and _QUEUES.match(c.where)) or (c.name == "acquire" and c.where == "std/threading.py")
        for c in inner
    )
    return waits and all(c.where.startswith(("std/", "torchdata/nodes/")) for c in inner)


def _by_library(c: Call) -> WorkerTask | None:
    at = _at(c)
    return next((work for work, pattern in _LIBRARIES if pattern.match(at)), None)


def _by_user(c: Call, line: str) -> WorkerTask | None:
    name = c.owner if c.name in ("__call__", "forward") else c.name  # a transform that is a class
    searched = ((_LINES, line), (_NAMES, name))
    return next((work for table, of in searched for work, pattern in table if pattern.search(of)), None)
