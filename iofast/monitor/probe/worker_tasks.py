"""What a loader's worker is at, by the functions it is in: a pure classification.

The innermost known call decides; a decode that PIL puts off until the resize is a decode. For a line of the user's code
that called into C, the text of the line decides, and last the names of the user's functions.
"""

import re
from collections.abc import Sequence

from iofast.monitor.probe.calls import Call, Patterns, Text
from iofast.monitor.snapshot import WorkerTask

# A forked worker has the training's own calls below these. torchdata's nodes run theirs in threads, too.
_LOOPS = re.compile(
    r"torch/utils/data/_utils/worker\.py:_worker_loop$|iofast/prefetch/.*:_work$"
    r"|torchdata/.*:(_worker_loop|_apply_udf|_populate_queue|_pin_memory_loop)$"
)
_CHILD = re.compile(
    r"std/multiprocessing/process\.py:(run|_bootstrap)$|std/concurrent/futures/\w+\.py:(_process_worker|_worker)$"
)
_WAIT = re.compile(
    r"std/(threading|selectors|queue)\.py:"
    r"|std/multiprocessing/(connection|queues|synchronize)\.py:(_poll|poll|wait|_recv|get|__enter__)$"
)
_NO_INPUT = re.compile(r"std/(multiprocessing/queues|queue)\.py:get$|std/threading\.py:acquire$")
_COLLATE = re.compile(r"torch/utils/data/_utils/collate\.py:|.*:\w*collat(e|ion)\w*$")
_COLLATING = re.compile(r"[cC]ollat(e|or|ion)")  # a class that collates
_READS = re.compile(r"\bread\(")
_FEEDER = re.compile(r"std/(multiprocessing/queues|queue)\.py:_feed$")
_PIN_LOOP = "torch/utils/data/_utils/pin_memory.py:_pin_memory_loop"
_NEXT_TASK = "iofast/prefetch/jobs.py:_work"  # takes tasks itself

_LIBRARIES = Patterns(  # in file:function
    {
        WorkerTask.SEND: r"std/multiprocessing/(connection|reduction)\.py:|torch/multiprocessing/reductions\.py:"
        r"|std/multiprocessing/queues\.py:put$",
        WorkerTask.PIN: r"torch/utils/data/_utils/pin_memory\.py:",
        WorkerTask.COLLATE: r"iofast/(loader/assemble|batch_memory)\.py:",
        WorkerTask.RESIZE: r"(PIL|torchvision|albumentations|kornia|cv2|skimage|imgaug|monai|torch|tensorflow|mmcv"
        r"|detectron2)[/.].*:_?(\w*resize\w*|thumbnail|reduce|rescale|interpolate|resample|\w*letterbox\w*)$",
        WorkerTask.READ: r"(lmdb|h5py|zarr|requests|urllib3|boto3|botocore|s3fs|fsspec|gcsfs|aiohttp|google/cloud"
        r"|pyarrow|netCDF4|tensorstore)/"
        r"|std/(tarfile|zipfile\w*|socket|ssl|http/client|urllib/.*|gzip|lzma|bz2|shutil|subprocess)\.py:|std/zipfile/"
        r"|std/pathlib\w*(/.*)?\.py:(open|read_bytes|read_text|stat)"
        r"|numpy/lib/(npyio|_npyio_impl|_format_impl|format)\.py:"
        r"|webdataset/(gopen|tariterators|cache|handlers|filters)\.py:"
        r"(gopen|url_opener|tar_file_\w+|read\w*|open\w*|stream)"
        r"|iofast/(containers|source)/|torch/serialization\.py:_?load",
        WorkerTask.AUGMENT: r"torchvision/(transforms|tv_tensors)/|albumentations/|albucore/|kornia/|imgaug/"
        r"|monai/transforms/|torchaudio/transforms/|skimage/(?!io)|scipy/ndimage/"
        r"|PIL/Image(Enhance|Ops|Filter|Chops|Transform)\.py:|iofast/(transforms|pixels)/"
        r"|PIL/Image\.py:(transpose|rotate|filter|point|crop|_crop|paste|transform|blend|composite|effect_\w+"
        r"|__array_interface__|tobytes)$",
        WorkerTask.DECODE: r"PIL/|torchvision/io/|turbojpeg\.py:|simplejpeg/|imageio/|decord/|av/|torchcodec/"
        r"|nvidia/nvimgcodec/|skimage/io/|tifffile/|jpeg4py/|rawpy/|pydicom/|cv2/|accimage/|soundfile\.py:|librosa/"
        r"|webdataset/autodecode\.py:|iofast/(kernel/|gpu/|loader/(samples|canvas|singly|batches))",
    }
)
_LINES = Patterns(  # in the text of a line that called into C
    {
        WorkerTask.DECODE: r"imdecode|imread|Image\.open|read_image|decode_(jpeg|image|png)|\.convert\(|\.load\(\)"
        r"|[dD]ecod\w*\(",
        WorkerTask.RESIZE: r"\bresize|\.(thumbnail|interpolate|reduce)\(|INTER_(LINEAR|AREA|CUBIC)",
        WorkerTask.READ: r"\bopen\(|\.(read\w*|recv\w*|pread|download\w*|fetch\w*)\(|np\.(load|fromfile|memmap)"
        r"|\b(txn|cursor)\.get\(|torch\.load",
        WorkerTask.COLLATE: r"(torch|np)\.(stack|cat|concatenate)\(|pad_sequence",
        WorkerTask.AUGMENT: r"flip|rotat|crop|jitter|normali[sz]e|blur|noise|warp|cvtColor|from_numpy"
        r"|\.(astype|permute|transpose|float|div_?|sub_?)\(",
    }
)
_NAMES = Patterns(  # of the user's functions
    {
        WorkerTask.DECODE: r"decode|imread|parse_image|to_image|load_image|open_image",
        WorkerTask.RESIZE: r"resize|rescale|letterbox|downsample",
        WorkerTask.AUGMENT: r"augment|transform|jitter|flip|crop|normali[sz]e|preprocess",
        WorkerTask.READ: r"(^|_)(read|load|fetch|download|open|get_bytes)",
    },
    re.IGNORECASE,
)


def task_of(calls: Sequence[Call], text: Text) -> WorkerTask:
    """The task of a worker with these calls, the innermost first."""
    inner = _within_the_loop(calls)
    if _starved(inner) or (calls and calls[0].label == _NEXT_TASK):
        return WorkerTask.STARVED
    if any(_COLLATE.match(c.label) or (c.name == "__call__" and _COLLATING.search(c.owner)) for c in inner):
        return WorkerTask.COLLATE
    for place, c in enumerate(inner):
        task = _by_user(c, text(c) if place == 0 else "") if c.user else _LIBRARIES.match(c.label)
        if task is WorkerTask.DECODE and not c.user and _READS.search(text(c)):
            return WorkerTask.READ  # PIL reads as it decodes
        if task is not None:
            return task
    return WorkerTask.OTHER


def thread_task(calls: Sequence[Call], text: Text) -> WorkerTask | None:
    """The task of a thread beside the training thread; None where it is no loader's, or has nothing to do for now."""
    if any(c.label == _PIN_LOOP for c in calls):
        return None if _WAIT.match(calls[0].label) else WorkerTask.PIN
    if not any(_LOOPS.match(c.label) for c in calls):
        return None
    parked = calls[0].label == _NEXT_TASK and "parked.get(" in text(calls[0])  # not needed by FastLoader for now
    return None if parked else task_of(calls, text)


def feeds(calls: Sequence[Call]) -> bool:
    """Whether this thread pickles a worker's batches and writes them to its pipe, and is not waiting for one."""
    return any(_FEEDER.match(c.label) for c in calls) and not _WAIT.match(calls[0].label)


def own_calls(calls: Sequence[Call]) -> Sequence[Call]:
    """The calls of a worker up to its loop: a forked one has those of the training below them."""
    return calls[: len(_within_the_loop(calls)) + 1]


def _within_the_loop(calls: Sequence[Call]) -> Sequence[Call]:
    for loop in (_LOOPS, _CHILD):
        place = next((place for place, c in enumerate(calls) if loop.match(c.label)), None)
        if place is not None:
            return calls[:place]
    return calls


def _starved(inner: Sequence[Call]) -> bool:
    """Waiting for a task, or for room for a batch, called by the loop itself."""
    waits = any(_NO_INPUT.match(c.label) for c in inner)
    return waits and all(c.where.startswith(("std/", "torchdata/nodes/")) for c in inner)


def _by_user(c: Call, line: str) -> WorkerTask | None:
    name = c.owner if c.name in ("__call__", "forward") else c.name  # a transform that is a class
    found = _LINES.search(line) or _NAMES.search(name)
    return None if found is None else found[0]
