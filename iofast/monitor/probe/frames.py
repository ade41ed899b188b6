"""What a training thread is at, by the functions it is in: a pure classification, with PyTorch 2's signatures.

A stack names Python functions, not the C function that the innermost of them called: `.item()` and `.to(device)` are
recognised by the text of the line. Some outer calls outrank inner ones: everything within saving is a checkpoint, and
forward functions that a backward runs again (activation checkpointing) are backward. Otherwise the innermost known call
decides, since training loops are often within closures of optimisers and within callbacks of frameworks.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from iofast.monitor.probe.calls import Call, Patterns, wait_of
from iofast.monitor.probe.loops import Feeds
from iofast.monitor.probe.worker_tasks import task_of
from iofast.monitor.snapshot import Frame, WaitSite, WaitSource, WorkerTask

TRAINING = frozenset({Frame.BACKWARD, Frame.OPTIMIZER})
_DECISIVE = TRAINING | {Frame.COMPILE, Frame.COMMUNICATION, Frame.TRANSFER}
_OTHERS_WORK = frozenset({WaitSource.THREADS, WaitSource.PROCESSES, WaitSource.SOCKET, WaitSource.EVENTS})
_IMAGES = frozenset({WorkerTask.READ, WorkerTask.DECODE, WorkerTask.RESIZE, WorkerTask.AUGMENT, WorkerTask.COLLATE})

_TORCH_LOADERS = re.compile(r"torch/utils/data/dataloader\.py$|torchdata/stateful_dataloader/")
_STARTING = frozenset({"__iter__", "_get_iterator", "_reset", "__init__", "_shutdown_workers", "__del__"})
_OURS = ("iofast/loader/", "iofast/prefetch/")
_OURS_STARTING = frozenset({"__init__", "close", "_employ", "_add_thread", "__iter__"})
_FETCH = re.compile(r"(torch/utils/data/_utils/fetch\.py|torchdata/stateful_dataloader/.*):fetch$")
_OTHER_LOADERS = re.compile(
    r"(iofast/(loader|meter/loop\.py)|webdataset|nvidia/dali|ffcv/loader|datasets|litdata|streaming|grain|spdl"
    r"|tensorflow/python/data|torchdata/nodes)(/|$)"
)
_NODES_STARTING = re.compile(r"torchdata/nodes/.*:(reset|_shutdown)$")
_IN_C = re.compile(r"nvidia/dali/|ffcv/|tensorflow/")  # loaders whose work no Python frame shows
_VALIDATION = re.compile(
    r"(_?(run|do)_)?(validate|validation|valid|evaluate|evaluation|eval|val|test)"
    r"(_(epoch|one_epoch|loop|step|model|phase|net|network|set|pass|run|accuracy|loss|all))?$"
)
_VALIDATION_LOOPS = re.compile(  # Lightning's, since 2.0 and before, and Ultralytics'
    r"(lightning/pytorch|pytorch_lightning)/loops/(dataloader/|epoch/)?evaluation(_epoch)?_loop\.py$"
    r"|ultralytics/engine/validator\.py$"
)
_CLOSURES = ("lightning/pytorch/loops/optimization/", "pytorch_lightning/loops/optimization/")
_TRAINER = re.compile(r"transformers/trainer\w*\.py$")
_SAVING = re.compile(
    r"(torch/serialization\.py:_?save|torch/distributed/checkpoint/.*:_?(async_)?save\w*|safetensors/.*:save\w*"
    r"|.*:_?save_(checkpoint|model|state|pretrained)|.*:_save_checkpoint)$"
)
_IMPORTING = "std/<frozen importlib._bootstrap>:_find_and_load"  # many libraries call find_spec in each step
_STARTUP = re.compile(
    r"torch/nn/modules/module\.py:(to|cuda|half|float|_apply|convert|train|eval|state_dict|load_state_dict)$"
)
_MARKS = Patterns(
    {
        Frame.COMPILE: r"torch/utils/cpp_extension\.py:"
        r"|torch/_dynamo/(convert_frame|symbolic_convert|output_graph|variables/.*|guards|bytecode_.*)\.py:"
        r"|torch/_inductor/(compile_fx|graph|scheduler|lowering|ir|select_algorithm|async_compile|codecache|codegen/.*"
        r"|runtime/autotune\w*|compile_worker/.*)\.py:"
        r"|torch/_inductor/runtime/triton_heuristics\.py:(\w*autotune\w*|bench\w*|coordinate_descent\w*|precompile)"
        r"|torch/_functorch/(aot_autograd|partitioners)\.py:(?!forward)|triton/(compiler|runtime/autotuner)",
        Frame.COMMUNICATION: r"torch/distributed/(distributed_c10d|_functional_collectives|c10d_logger)\.py:"
        r"|deepspeed/comm/|horovod/torch/mpi_ops\.py:",
        Frame.SYNC: r"torch/(cuda|xpu|mps)/.*:(synchronize|empty_cache)$|torch/accelerator/.*:synchronize$"
        r"|torch/_tensor_str\.py:|torch/_tensor\.py:(__repr__|__format__|__array__|__contains__)$|.*:(synchronize|item)$",
        Frame.TRANSFER: r"torch/utils/data/_utils/pin_memory\.py:|accelerate/utils/operations\.py:send_to_device"
        r"|transformers/.*:_prepare_inputs?$|(lightning|pytorch_lightning|lightning_fabric)/"
        r".*:(move_data_to_device|batch_to_device|_?transfer_batch_to_device)$",
        Frame.OPTIMIZER: r"torch/optim/|accelerate/optimizer\.py:|torch/(cuda/)?amp/grad_scaler\.py:(?!scale$)"
        r"|torch/nn/utils/clip_grad\.py:|apex/optimizers/|bitsandbytes/optim/|timm/optim/|deepspeed/ops/adam/"
        r"|torch_optimizer/",
        Frame.BACKWARD: r"torch/autograd/(__init__|graph)\.py:(backward|grad|_engine_run_backward)$"
        r"|torch/_tensor\.py:backward$",
        Frame.FORWARD: r"torch/nn/(?!utils/)|torch/_functorch/|torch/fx/|torch/utils/checkpoint\.py:"
        r"|std/<eval_with_key>|.*/torchinductor_|torchvision/(models|ops)/|timm/(models|layers|loss)/"
        r"|transformers/(models|modeling\w*|loss)|segmentation_models|xformers/|flash_attn/|.*:(forward|training_step)$"
        r"|torch/_dynamo/eval_frame\.py:",
    }
)
# Not by torch/_dynamo alone: functions that are kept from being compiled go through eval_frame.py as well, such as each
# zero_grad() of an optimiser and each log() of Lightning.
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
class Seen:
    """What one stack of the training thread shows.

    `inline`: the calls within the loader, if it works here. `wait`: where the thread waits, or makes a batch, except in
    PyTorch's loader or ours. `trains`: it is in a training loop.
    """

    frame: Frame
    inline: tuple[Call, ...] = ()
    wait: WaitSite | None = None
    trains: bool = False


def frame_of(calls: Sequence[Call], feeds: Feeds) -> Seen:
    """Classify a thread with these calls, the innermost first."""
    loader = _entry(calls)
    outer = calls if loader is None else calls[loader:]
    if any(_SAVING.match(c.label) for c in calls):
        return Seen(Frame.CHECKPOINT)
    validating = any(_validates(c) for c in outer)
    wait = wait_of(calls, feeds.line)
    if loader is not None:
        frame = _in_loader(calls[:loader], calls[loader], wait)
        inline = tuple(calls[:loader]) if frame is Frame.LOADER_INLINE else ()
        known = any(_TORCH_LOADERS.search(c.where) or c.where.startswith(_OURS) for c in calls[: loader + 1])
        return Seen(Frame.VALIDATION if validating else frame, inline=inline, wait=None if known else wait)
    if validating:
        return Seen(Frame.VALIDATION)
    seen = _in_step(calls, feeds)
    if seen.frame in _DECISIVE:
        return replace(seen, trains=seen.frame in TRAINING)
    return _in_loop(calls, feeds, wait, seen)


def compiled(calls: Sequence[Call]) -> bool:
    """Whether these calls run or make compiled code."""
    return any(_COMPILED.match(c.label) for c in calls)


def _entry(calls: Sequence[Call]) -> int | None:
    """The place of the outermost call of a loader."""
    for place in range(len(calls) - 1, -1, -1):
        call = calls[place]
        if _TORCH_LOADERS.search(call.where) and (call.name == "__next__" or call.name in _STARTING):
            return place
        if _OTHER_LOADERS.match(call.where) and call.name != "<module>":
            return place
    return None


def _in_loop(calls: Sequence[Call], feeds: Feeds, wait: WaitSite | None, seen: Seen) -> Seen:
    """For a program with a loader of its own: a generator, an iterator, a queue. `seen` is what its step shows."""
    place = feeds.entry(calls, wait)
    if place is not None:
        inner = tuple(calls[:place])
        forward = seen.frame is Frame.FORWARD and task_of(inner, feeds.line) not in _IMAGES
        if forward or (seen.frame is Frame.SYNC and not calls[0].user):
            return replace(seen, trains=True)
        if not inner or (wait is not None and wait.source in _OTHERS_WORK):
            return Seen(Frame.LOADER_WAIT, wait=wait, trains=True)
        return Seen(Frame.LOADER_INLINE, inline=inner, wait=wait, trains=True)
    if wait is None or seen.frame is not Frame.OTHER:
        return seen
    if (awaited := feeds.awaits(wait)) is not None:
        return Seen(Frame.LOADER_WAIT, wait=awaited, trains=True)
    trains = feeds.trains(calls, wait)
    if wait.source in _OTHERS_WORK or wait.source is WaitSource.TIMER:
        return Seen(Frame.WAITING, wait=wait, trains=trains)
    return replace(seen, trains=trains)


def _in_loader(inner: Sequence[Call], entry: Call, wait: WaitSite | None) -> Frame:
    loading = (*inner, entry)
    if any(_FETCH.search(c.label) for c in inner):
        return Frame.LOADER_INLINE
    if torch := [c for c in loading if _TORCH_LOADERS.search(c.where)]:
        if any(c.name in _STARTING for c in torch):
            return Frame.LOADER_START
        return Frame.LOADER_INLINE if any("SingleProcess" in c.owner for c in torch) else Frame.LOADER_WAIT
    if ours := [c.name for c in loading if c.where.startswith(_OURS)]:
        if "_work_here" in ours:
            return Frame.LOADER_INLINE
        return Frame.LOADER_WAIT if _OURS_STARTING.isdisjoint(ours) else Frame.LOADER_START
    if any(_NODES_STARTING.match(c.label) for c in loading):
        return Frame.LOADER_START
    if (wait is not None and wait.source in _OTHERS_WORK) or (
        _IN_C.search(entry.where) and not any(c.user for c in inner)
    ):
        return Frame.LOADER_WAIT
    return Frame.LOADER_START if entry.name == "__iter__" and not inner else Frame.LOADER_INLINE


def _in_step(calls: Sequence[Call], feeds: Feeds) -> Seen:
    # Lightning trains within closures of its optimisers: the calls around a closure do not describe its content.
    within = takewhile(lambda c: not c.where.startswith(_CLOSURES), calls)
    marks = [mark for c in within if (mark := _mark(c)) is not None]
    importing = any(c.label == _IMPORTING for c in calls) and not any(c.name == "_call_impl" for c in calls)
    if importing and TRAINING.isdisjoint(marks):
        return Seen(Frame.COMPILE)
    for decisive in (Frame.COMPILE, Frame.COMMUNICATION):
        if decisive in marks:
            return Seen(decisive)
    line = "" if not calls or calls[0].where.startswith(("std/", "torch/optim/")) else feeds.line(calls[0])
    if (found := _SYNC_LINE.search(line)) is not None:
        name = found.group().partition("(")[0]
        return _sync(calls, ".to('cpu')" if name == ".to" else f"{name}()")
    # a user's `forward` may move tensors itself
    if _TRANSFER_LINE.search(line) and (calls[0].user or _mark(calls[0]) is None):
        return Seen(Frame.TRANSFER)
    if not marks:
        return Seen(Frame.OTHER)
    if marks[0] is Frame.SYNC:
        sync = next(c for c in calls if _mark(c) is Frame.SYNC)
        return _sync(calls, "print" if "_str" in sync.where else f"{sync.name}()")
    return Seen(Frame.BACKWARD if marks[0] is Frame.FORWARD and Frame.BACKWARD in marks else marks[0])


def _mark(call: Call) -> Frame | None:
    return None if _STARTUP.match(call.label) else _MARKS.match(call.label)


def _sync(calls: Sequence[Call], name: str) -> Seen:
    """At the innermost line of the user's code; without one, of a framework other than PyTorch."""
    at = next((c for c in calls if c.user), None)
    at = at or next((c for c in calls if not c.where.startswith(("std/", "torch/"))), None)
    return Seen(Frame.SYNC, wait=None if at is None else WaitSite(at.path, at.line, at.name, name, WaitSource.DEVICE))


def _validates(call: Call) -> bool:
    if call.user or _TRAINER.match(call.where):
        return _VALIDATION.match(call.name) is not None
    return _VALIDATION_LOOPS.match(call.where) is not None
