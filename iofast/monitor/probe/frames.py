"""What a training thread is at, by the functions it is in: a pure classification, with PyTorch 2's signatures.

A stack names Python functions, not the C function that the innermost of them called: `.item()` and `.to(device)` are
told by the text of the line. Outer calls can outrank inner ones: everything within saving is a checkpoint, and forward
functions that a backward runs again (activation checkpointing) are backward. Otherwise the innermost that is known
decides, since training loops are often within closures of optimisers and within callbacks of frameworks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from iofast.monitor.probe.calls import Call, Text
from iofast.monitor.probe.feeds import Feeds
from iofast.monitor.probe.waits import Wait, wait_of
from iofast.monitor.probe.worker_tasks import work_of
from iofast.monitor.snapshot import Frame, WaitSource, WorkerTask

_TORCH_LOADERS = re.compile(r"torch/utils/data/dataloader\.py$|torchdata/stateful_dataloader/")
_STARTING = frozenset({"__iter__", "_get_iterator", "_reset", "__init__", "_shutdown_workers", "__del__"})
_OURS = ("iofast/loader/", "iofast/prefetch/")
_FETCH = re.compile(r"torch/utils/data/_utils/fetch\.py$|torchdata/stateful_dataloader/")
_OTHER_LOADERS = re.compile(
    r"(iofast/(loader|meter/loop\.py)|webdataset|nvidia/dali|ffcv/loader|datasets|litdata|streaming|grain|spdl"
    r"|tensorflow/python/data|torchdata/nodes)(/|$)"
)
_IN_C = re.compile(r"nvidia/dali/|ffcv/|tensorflow/")  # loaders whose work no Python frame shows
TRAINING = frozenset({Frame.BACKWARD, Frame.OPTIMIZER})
_ELSEWHERE = frozenset(
    {WaitSource.THREADS, WaitSource.PROCESSES, WaitSource.SOCKET, WaitSource.EVENTS}
)  # others make the batch
_DECISIVE = TRAINING | {Frame.COMPILE, Frame.COMMUNICATION, Frame.TRANSFER}
_IMAGES = frozenset({WorkerTask.READ, WorkerTask.DECODE, WorkerTask.RESIZE, WorkerTask.AUGMENT, WorkerTask.COLLATE})
_VALIDATION = re.compile(
    r"(_?(run|do)_)?(validate|validation|valid|evaluate|evaluation|eval|val|test)"
    r"(_(epoch|one_epoch|loop|step|model|phase|net|network|set|pass|run|accuracy|loss|all))?$"
)
_VALIDATION_LOOPS = re.compile(  # Lightning's, since 2.0 and before, and Ultralytics'
    r"(lightning/pytorch|pytorch_lightning)/loops/(dataloader/|epoch/)?evaluation(_epoch)?_loop\.py$"
    r"|ultralytics/engine/validator\.py$"
)
_TRAINER = re.compile(r"transformers/trainer\w*\.py$")
_SAVING = re.compile(
    r"(torch/serialization\.py:_?save|torch/distributed/checkpoint/.*:_?(async_)?save\w*|safetensors/.*:save\w*"
    r"|.*:_?save_(checkpoint|model|state|pretrained)|.*:_save_checkpoint)$"
)
_IMPORTING = "std/<frozen importlib._bootstrap>"  # in _find_and_load: many libraries ask find_spec in each step

_MARKS: tuple[tuple[Frame, re.Pattern[str]], ...] = (  # of file:function
    (
        Frame.COMPILE,
        re.compile(
            r"torch/_dynamo/(convert_frame|symbolic_convert|output_graph|variables/.*|guards|bytecode_.*)\.py:"
            r"|torch/_inductor/(compile_fx|graph|scheduler|lowering|ir|select_algorithm|async_compile|codecache|codegen/.*"
            r"|runtime/autotune\w*|compile_worker/.*)\.py:"
            r"|torch/_inductor/runtime/triton_heuristics\.py:(\w*autotune\w*|bench\w*|coordinate_descent\w*|precompile)"
            r"|torch/_functorch/(aot_autograd|partitioners)\.py:(?!forward)|triton/(compiler|runtime/autotuner)"
            r"|torch/utils/cpp_extension\.py:"
        ),
    ),
    (
        Frame.COMMUNICATION,
        re.compile(
            r"torch/distributed/(distributed_c10d|_functional_collectives|c10d_logger)\.py:|deepspeed/comm/"
            r"|horovod/torch/mpi_ops\.py:"
        ),
    ),
    (
        Frame.SYNC,
        re.compile(
            r"torch/(cuda|xpu|mps)/.*:(synchronize|empty_cache)$|torch/accelerator/.*:synchronize$|torch/_tensor_str\.py:"
            r"|torch/_tensor\.py:(__repr__|__format__|__array__|__contains__)$|.*:(synchronize|item)$"
        ),
    ),
    (
        Frame.TRANSFER,
        re.compile(
            r"torch/utils/data/_utils/pin_memory\.py:|accelerate/utils/operations\.py:send_to_device|transformers/.*:_prepare_inputs?$"
            r"|(lightning|pytorch_lightning|lightning_fabric)/.*:(move_data_to_device|batch_to_device|_?transfer_batch_to_device)$"
        ),
    ),
    (
        Frame.OPTIMIZER,
        re.compile(
            r"torch/optim/|accelerate/optimizer\.py:|torch/(cuda/)?amp/grad_scaler\.py:(?!scale$)|torch/nn/utils/clip_grad\.py:|apex/optimizers/"
            r"|bitsandbytes/optim/|timm/optim/|deepspeed/ops/adam/|torch_optimizer/"
        ),
    ),
    (
        Frame.BACKWARD,
        re.compile(
            r"torch/autograd/(__init__|graph)\.py:(backward|grad|_engine_run_backward)$|torch/_tensor\.py:backward$"
        ),
    ),
    (
        Frame.FORWARD,
        re.compile(
            r"torch/nn/(?!utils/)|torch/_functorch/|torch/fx/|torch/utils/checkpoint\.py:|std/<eval_with_key>|.*/torchinductor_"
            r"|torchvision/(models|ops)/|timm/(models|layers|loss)/|transformers/(models|modeling\w*|loss)|segmentation_models"
            r"|xformers/|flash_attn/|.*:(forward|training_step)$|torch/_dynamo/eval_frame\.py:"
        ),
    ),
)
_STARTUP = re.compile(
    r"torch/nn/modules/module\.py:(to|cuda|half|float|_apply|convert|train|eval|state_dict|load_state_dict)$"
)

_COMPILED = re.compile(
    r".*/torchinductor_|torch/_inductor/|torch/_functorch/_aot_autograd/"
    r"|torch/_dynamo/(eval_frame\.py:compile_wrapper$|(convert_frame|symbolic_convert|output_graph)\.py:)"
)

_SYNC_LINE = re.compile(
    r"\.(item|cpu|tolist|numpy|nonzero|synchronize)\(|\.to\(\s*(?:device\s*=\s*)?[\"']cpu|\b(print|float|int|bool)\([\w.\[\]]+\)"
)
_TRANSFER_LINE = re.compile(
    r"\.(cuda|pin_memory|copy_)\(|\.to\((?!\s*(?:dtype|memory_format|torch\.(?:u?int|float|half|bfloat|double|long|bool|channels))|[^()]*dtype)"
)


@dataclass(frozen=True, slots=True)
class Sync:
    """Where the host waits for the device: a line of the user's code, and what it calls."""

    file: str
    line: int
    call: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What one stack of the training thread says.

    `inline`: the calls within the loader, where it works in here. `wait`: where it waits, or makes a batch, unless
    that is in PyTorch's loader or ours. `trains`: it is in a training loop.
    """

    frame: Frame
    sync: Sync | None = None
    inline: tuple[Call, ...] = ()
    wait: Wait | None = None
    trains: bool = False


def frame_of(calls: Sequence[Call], text: Text, feeds: Feeds) -> Seen:
    """What a thread with these calls, the innermost first, is at."""
    loader = _entry(calls)
    outer = calls if loader is None else calls[loader:]
    if any(_SAVING.match(f"{c.where}:{c.name}") for c in calls):
        return Seen(Frame.CHECKPOINT)
    validating = any(_validates(c) for c in outer)
    wait = wait_of(calls, text)
    if loader is not None:
        frame = _in_loader(calls[:loader], calls[loader], wait)
        inline = tuple(calls[:loader]) if frame is Frame.LOADER_INLINE else ()
        known = any(_TORCH_LOADERS.search(c.where) or c.where.startswith(_OURS) for c in calls[: loader + 1])
        return Seen(Frame.VALIDATION if validating else frame, inline=inline, wait=None if known else wait)
    if validating:
        return Seen(Frame.VALIDATION)
    seen = _in_step(calls, text)
    if seen.frame in _DECISIVE:
        return replace(seen, trains=seen.frame in TRAINING)
    return _in_loop(calls, text, feeds, wait, seen)


def single_tensor(calls: Sequence[Call]) -> bool:
    """Whether an optimiser is seen that launches a kernel, or several, for each parameter."""
    return any(c.where.startswith("torch/optim/") and c.name.startswith("_single_tensor_") for c in calls)


def anomalies(calls: Sequence[Call]) -> bool:
    """Whether autograd is seen keeping a traceback for each operation: anomaly detection is on."""
    recorded = any(c.where == "torch/fx/traceback.py" and c.name == "format_stack" for c in calls)
    return recorded and not compiled(calls)


def convolutions(calls: Sequence[Call]) -> bool:
    """Whether a convolution is seen."""
    return any(c.where == "torch/nn/modules/conv.py" for c in calls)


def compiled(calls: Sequence[Call]) -> bool:
    """Whether torch.compile is seen, at work or in what it made.

    Not by torch/_dynamo alone: what is kept from being compiled goes through eval_frame.py as well, each zero_grad() of
    an optimiser and each log() of Lightning.
    """
    return any(_COMPILED.match(f"{c.where}:{c.name}") for c in calls)


def _entry(calls: Sequence[Call]) -> int | None:
    """The place of the outermost call that is a loader's."""
    for place in range(len(calls) - 1, -1, -1):
        call = calls[place]
        if _TORCH_LOADERS.search(call.where) and (call.name == "__next__" or call.name in _STARTING):
            return place
        if _OTHER_LOADERS.match(call.where) and call.name != "<module>":
            return place
    return None


def _in_loop(calls: Sequence[Call], text: Text, feeds: Feeds, wait: Wait | None, seen: Seen) -> Seen:
    """The same of a program whose loader is its own: a generator, an iterator, a queue."""
    place = feeds.entry(calls, wait)
    if place is not None:
        inner = tuple(calls[:place])
        forward = seen.frame is Frame.FORWARD and work_of(inner, text) not in _IMAGES
        if forward or (seen.frame is Frame.SYNC and not calls[0].user):
            return replace(seen, trains=True)
        if not inner or (wait is not None and wait.source in _ELSEWHERE):
            return Seen(Frame.LOADER_WAIT, wait=wait, trains=True)
        return Seen(Frame.LOADER_INLINE, inline=inner, wait=wait, trains=True)
    if wait is None or seen.frame is not Frame.OTHER:
        return seen
    if (batch := feeds.awaits(wait)) is not None:
        return Seen(Frame.LOADER_WAIT, wait=replace(wait, at=batch, call="asyncio"), trains=True)
    if wait.source in _ELSEWHERE or wait.source is WaitSource.TIMER:
        return Seen(Frame.WAITING, wait=wait, trains=feeds.trains(calls, wait))
    return replace(seen, trains=feeds.trains(calls, wait))


def _in_loader(inner: Sequence[Call], entry: Call, wait: Wait | None) -> Frame:
    torch = [c for c in (*inner, entry) if _TORCH_LOADERS.search(c.where)]
    ours = [c for c in (*inner, entry) if c.where.startswith(_OURS)]
    if any(_FETCH.search(c.where) and c.name == "fetch" for c in inner):
        return Frame.LOADER_INLINE
    if torch:
        if any(c.name in _STARTING for c in torch):
            return Frame.LOADER_START
        return Frame.LOADER_INLINE if any("SingleProcess" in c.owner for c in torch) else Frame.LOADER_WAIT
    if any(c.name == "_work_here" for c in ours):
        return Frame.LOADER_INLINE
    if ours:
        started = any(c.name in ("__init__", "close", "_employ", "_add_thread", "__iter__") for c in ours)
        return Frame.LOADER_START if started else Frame.LOADER_WAIT
    if any(c.where.startswith("torchdata/nodes/") and c.name in ("reset", "_shutdown") for c in (*inner, entry)):
        return Frame.LOADER_START
    if wait is not None and wait.source in _ELSEWHERE:
        return Frame.LOADER_WAIT
    if _IN_C.search(entry.where) and not any(c.user for c in inner):
        return Frame.LOADER_WAIT
    return Frame.LOADER_START if entry.name == "__iter__" and not inner else Frame.LOADER_INLINE


def _in_step(calls: Sequence[Call], text: Text) -> Seen:
    known = [mark for c in takewhile(_within_closure, calls) if (mark := _mark(c)) is not None]
    line = "" if not calls or calls[0].where.startswith(("std/", "torch/optim/")) else text(calls[0])
    importing = any(c.where == _IMPORTING and c.name == "_find_and_load" for c in calls)
    if (
        importing
        and not {Frame.BACKWARD, Frame.OPTIMIZER} & set(known)
        and not any(c.name == "_call_impl" for c in calls)
    ):
        return Seen(Frame.COMPILE)
    for decisive in (Frame.COMPILE, Frame.COMMUNICATION):
        if decisive in known:
            return Seen(decisive)
    if (found := _SYNC_LINE.search(line)) is not None:
        return Seen(Frame.SYNC, _site(calls, _called(found.group())))
    if _mark_of_innermost(calls) is None and _TRANSFER_LINE.search(line):
        return Seen(Frame.TRANSFER)
    if not known:
        return Seen(Frame.OTHER)
    if known[0] is Frame.SYNC:
        named = next(c for c in calls if _mark(c) is Frame.SYNC)
        return Seen(Frame.SYNC, _site(calls, "print" if "_str" in named.where else f"{named.name}()"))
    if known[0] is Frame.FORWARD and Frame.BACKWARD in known:
        return Seen(Frame.BACKWARD)
    return Seen(known[0])


def _within_closure(call: Call) -> bool:
    """Lightning trains within closures of its optimisers: what calls these says nothing of what is within."""
    return not call.where.startswith(("lightning/pytorch/loops/optimization/", "pytorch_lightning/loops/optimization/"))


def _mark(call: Call) -> Frame | None:
    at = f"{call.where}:{call.name}"
    if _STARTUP.match(at):
        return None
    return next((frame for frame, pattern in _MARKS if pattern.match(at)), None)


def _mark_of_innermost(calls: Sequence[Call]) -> Frame | None:
    """Of library code: a user's `forward` may move tensors itself."""
    return None if not calls or calls[0].user else _mark(calls[0])


def _site(calls: Sequence[Call], name: str) -> Sync | None:
    """The innermost line of the user's code; where a framework does it all, of what is not PyTorch's."""
    mine = next((c for c in calls if c.user), None)
    mine = mine or next((c for c in calls if not c.where.startswith(("std/", "torch/"))), None)
    return None if mine is None else Sync(mine.path, mine.line, name)


def _called(found: str) -> str:
    """`.item(` and `float(loss)` as a user would write them."""
    name = found.partition("(")[0]
    return ".to('cpu')" if name == ".to" else f"{name}()"


def _validates(call: Call) -> bool:
    if call.user or _TRAINER.match(call.where):
        return _VALIDATION.match(call.name) is not None
    return _VALIDATION_LOOPS.match(call.where) is not None
