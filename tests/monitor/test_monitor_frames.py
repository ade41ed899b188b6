"""What stacks say: recorded from py-spy 0.4.2 on torch 2, or written from the sources of what cannot run here.

Stacks of frameworks and loaders that are not PyTorch's own are in framework_stacks.txt, as py-spy 0.4.3 recorded them;
those of ZeroMQ and gRPC are of a program with a generator of its own, `PROGRAM`.
"""

# ruff: noqa: E501 (a stack is one line, as py-spy writes it)

from pathlib import Path
from typing import NamedTuple

import pytest
from monitor_stacks import Listing, stack

from iofast.monitor.probe.calls import Call, Stack, parse
from iofast.monitor.probe.frames import compiled, frame_of
from iofast.monitor.probe.worker_tasks import feeds, task_of, thread_task
from iofast.monitor.snapshot import Frame, WorkerTask

# In these, ~ is a site-packages folder and ^ the standard library's.
LOOP = "main (/u/train.py:23)"
NEXT = f"{LOOP};_BaseDataLoaderIter.__next__ (~torch/utils/data/dataloader.py:725)"
MULTI = (
    f"{NEXT};_MultiProcessingDataLoaderIter._next_data (~torch/utils/data/dataloader.py:1505)"
    ";_MultiProcessingDataLoaderIter._get_data (~torch/utils/data/dataloader.py:1464)"
    ";_MultiProcessingDataLoaderIter._try_get_data (~torch/utils/data/dataloader.py:1291)"
)
POLL = "Queue.get (^multiprocessing/queues.py:113);_ConnectionBase.poll (^multiprocessing/connection.py:257);select (^selectors.py:415)"
FETCH = "_MapDatasetFetcher.fetch (~torch/utils/data/_utils/fetch.py:54)"
SINGLE = f"{NEXT};_SingleProcessDataLoaderIter._next_data (~torch/utils/data/dataloader.py:785);{FETCH}"
START = (
    f"{LOOP};DataLoader.__iter__ (~torch/utils/data/dataloader.py:505)"
    ";DataLoader._get_iterator (~torch/utils/data/dataloader.py:438)"
    ";_MultiProcessingDataLoaderIter.__init__ (~torch/utils/data/dataloader.py:1176);BaseProcess.start (^multiprocessing/process.py:121)"
)
WORKER = f"{START};_worker_loop (~torch/utils/data/_utils/worker.py:374)"  # forked: the training's calls are below
ITEM = f"{WORKER};{FETCH};Data.__getitem__ (/u/train.py:16)"
CONV = (
    "Module._call_impl (~torch/nn/modules/module.py:1789);Conv2d.forward (~torch/nn/modules/conv.py:565)"
    ";Conv2d._conv_forward (~torch/nn/modules/conv.py:560)"
)
BACKWARD = (
    "Tensor.backward (~torch/_tensor.py:623);backward (~torch/autograd/__init__.py:395)"
    ";_engine_run_backward (~torch/autograd/graph.py:979)"
)
STEP = (
    "Optimizer.profile_hook_step.<locals>.wrapper (~torch/optim/optimizer.py:530);Adam.step (~torch/optim/adam.py:248)"
)


@pytest.mark.parametrize(
    ("frame", "text", "line"),
    [
        (Frame.LOADER_WAIT, f"{MULTI};{POLL}", ""),
        (Frame.LOADER_WAIT, f"{MULTI};Queue.get (^queue.py:180);Condition.wait (^threading.py:331)", ""),  # a pin thread
        (Frame.LOADER_WAIT, f"{NEXT};__next__ (~torch/utils/data/sampler.py:9)", ""),
        (Frame.LOADER_INLINE, f"{LOOP};FastLoader._batches (~iofast/loader/fast.py:215);Prefetch._work_here (~iofast/prefetch/jobs.py:312)", ""),
        (Frame.LOADER_INLINE, f"{SINGLE};Data.__getitem__ (/u/train.py:16);Image.resize (~PIL/Image.py:2440)", ""),
        (Frame.LOADER_INLINE, f"{SINGLE};Data.__getitem__ (/u/train.py:16);{CONV}", ".item()"),  # a network in a dataset
        (Frame.LOADER_START, f"{START};Popen._launch (^multiprocessing/popen_fork.py:66)", ""),
        (Frame.LOADER_START, f"{NEXT};_next_data (~torch/utils/data/dataloader.py:1490);_shutdown_workers (~torch/utils/data/dataloader.py:1654);poll (^multiprocessing/popen_fork.py:27)", ""),
        # Python 3.10 tells no classes
        (Frame.LOADER_WAIT, f"{LOOP};__next__ (~torch/utils/data/dataloader.py:725);_next_data (~torch/utils/data/dataloader.py:1);_try_get_data (~torch/utils/data/dataloader.py:2);get (^queue.py:180)", ""),
        (Frame.LOADER_WAIT, f"{LOOP};FastLoader._batches (/src/iofast/loader/fast.py:215);Prefetch.__next__ (/src/iofast/prefetch/jobs.py:201)", ""),
        (Frame.LOADER_START, f"{LOOP};FastLoader._batches (~iofast/loader/fast.py:208);Prefetch.__init__ (~iofast/prefetch/jobs.py:170)", ""),
        (Frame.LOADER_WAIT, f"{LOOP};_Batches.__next__ (~iofast/meter/loop.py:97);{MULTI.removeprefix(LOOP + ';')};{POLL}", ""),
        (Frame.LOADER_INLINE, f"{LOOP};_Batches.__next__ (~iofast/meter/loop.py:97);mine (/u/data.py:3);sqrt (/u/data.py:7)", ""),
        (Frame.LOADER_WAIT, f"{LOOP};DALIGenericIterator.__next__ (~nvidia/dali/plugin/pytorch/__init__.py:240);Pipeline.share_outputs (~nvidia/dali/pipeline.py:1200)", ""),
        (Frame.LOADER_INLINE, f"{LOOP};DALIGenericIterator.__next__ (~nvidia/dali/plugin/pytorch/__init__.py:240);run (~nvidia/dali/pipeline.py:9);source (/u/train.py:3)", ""),
        (Frame.FORWARD, f"{LOOP};{CONV}", ""),
        (Frame.FORWARD, f"{LOOP};Net.forward (/u/net.py:5)", "x = self.a(x) + x"),
        (Frame.BACKWARD, f"{LOOP};{BACKWARD}", ""),
        (Frame.BACKWARD, f"{LOOP};{BACKWARD};CheckpointFunction.backward (~torch/utils/checkpoint.py:300);{CONV}", ""),
        (Frame.OPTIMIZER, f"{LOOP};{STEP};_single_tensor_adam (~torch/optim/adam.py:456)", ""),
        (Frame.FORWARD, f"{LOOP};{STEP};closure (~lightning/pytorch/loops/optimization/automatic.py:1);{CONV}", ""),
        (Frame.SYNC, LOOP, "total += loss.item()"),
        (Frame.SYNC, LOOP, "running += float(loss)"),
        (Frame.SYNC, LOOP, "out = out.to('cpu')"),
        (Frame.SYNC, f"{LOOP};synchronize (~torch/cuda/__init__.py:1083)", ""),
        (Frame.SYNC, f"{LOOP};Tensor.__format__ (~torch/_tensor.py:1115)", ""),
        (Frame.SYNC, f"{LOOP};Device.synchronize (/u/device.py:4)", "self.lock.acquire()"),
        (Frame.OPTIMIZER, f"{LOOP};{STEP};_get_value (~torch/optim/optimizer.py:98)", "return x.item()"),  # of a CPU tensor
        (Frame.TRANSFER, LOOP, "x = x.to(device, non_blocking=True)"),
        (Frame.OTHER, LOOP, "x = x.to(torch.float32)"),
        (Frame.OTHER, LOOP, "x = x.to(memory_format=torch.channels_last)"),
        (Frame.TRANSFER, f"{LOOP};send_to_device (~accelerate/utils/operations.py:178)", ""),
        (Frame.VALIDATION, f"main (/u/train.py:50);validate (/u/train.py:30);{CONV}", ""),
        (Frame.VALIDATION, f"main (/u/train.py:50);evaluate (/u/train.py:30);{MULTI};{POLL}", ""),
        (Frame.VALIDATION, f"Trainer.evaluate (~transformers/trainer.py:1);Trainer.evaluation_loop (~transformers/trainer.py:2);{CONV}", ""),
        (Frame.VALIDATION, f"fit (~lightning/a.py:1);_EvaluationLoop.run (~lightning/pytorch/loops/evaluation_loop.py:145);{CONV}", ""),
        (Frame.VALIDATION, f"_do_train (~ultralytics/engine/trainer.py:1);BaseValidator.__call__ (~ultralytics/engine/validator.py:9);{CONV}", ""),
        (Frame.FORWARD, f"validate (~pydantic/main.py:1);{LOOP};{CONV}", ""),  # a library's, of something else
        (Frame.LOADER_WAIT, f"{LOOP};Pipeline.run (~nvidia/dali/pipeline.py:1200)", ""),
        (Frame.CHECKPOINT, f"{LOOP};save (~torch/serialization.py:1003);_save (~torch/serialization.py:1312)", ""),
        (Frame.CHECKPOINT, "main (/u/train.py:50);validate (/u/train.py:30);save_checkpoint (/u/train.py:9)", ""),
        (Frame.COMPILE, f"{LOOP};_TorchDynamoContext.__call__ (~torch/_dynamo/eval_frame.py:1);transform (~torch/_dynamo/convert_frame.py:2)", ""),
        (Frame.COMPILE, f"{LOOP};_find_and_load (<frozen importlib._bootstrap>:1176);<module> (~torch/nn/modules/conv.py:1)", ""),
        (Frame.FORWARD, f"{LOOP};_fn (~torch/_dynamo/eval_frame.py:1);call (/tmp/torchinductor_me/ab/cab.py:80)", ""),
        (Frame.COMMUNICATION, f"{LOOP};wrapper (~torch/distributed/c10d_logger.py:81);all_reduce (~torch/distributed/distributed_c10d.py:2991)", ""),
        (Frame.WAITING, f"{LOOP};log (/u/log.py:4)", "time.sleep(1)"),
        (Frame.OTHER, f"{LOOP};log (/u/log.py:4)", "json.dumps(figures)"),
    ],
)  # fmt: skip
def test_the_training_thread(frame: Frame, text: str, line: str) -> None:
    assert frame_of(stack(text).calls, Listing(line=line)).frame is frame


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        (WorkerTask.STARVED, f"{WORKER};{POLL}", ""),
        (WorkerTask.DECODE, f"{ITEM};Image.convert (~PIL/Image.py:1067);ImageFile.load (~PIL/ImageFile.py:425)", ""),
        (WorkerTask.DECODE, f"{ITEM};transform (/u/t.py:9);Image.resize (~PIL/Image.py:2420);ImageFile.load (~PIL/ImageFile.py:425)", ""),
        (WorkerTask.RESIZE, f"{ITEM};transform (/u/t.py:9);Image.resize (~PIL/Image.py:2440)", ""),
        (WorkerTask.RESIZE, f"{ITEM};Compose.__call__ (~torchvision/transforms/transforms.py:95);resize (~torchvision/transforms/functional.py:465);interpolate (~torch/nn/functional.py:4500)", ""),
        (WorkerTask.AUGMENT, f"{ITEM};Compose.__call__ (~torchvision/transforms/transforms.py:95);ColorJitter.forward (~torchvision/transforms/transforms.py:1280)", ""),
        (WorkerTask.AUGMENT, f"{ITEM};Compose.__call__ (~torchvision/transforms/transforms.py:95);Mine.__call__ (/u/t.py:4)", ""),
        (WorkerTask.DECODE, ITEM, "image = cv2.imdecode(data, 1)"),
        (WorkerTask.READ, ITEM, "data = file.read()"),
        (WorkerTask.READ, ITEM, "data = txn.get(key)"),
        (WorkerTask.READ, f"{ITEM};Dataset.__getitem__ (~h5py/_hl/dataset.py:800)", ""),
        (WorkerTask.READ, f"{ITEM};get (~requests/api.py:73);readinto (^socket.py:706)", ""),
        (WorkerTask.READ, f"{WORKER};fetch (~torch/utils/data/_utils/fetch.py:33);tar_file_iterator (~webdataset/tariterators.py:130);_FileInFile.read (^tarfile.py:690)", ""),
        (WorkerTask.DECODE, f"{ITEM};decode (/u/t.py:9)", "time.sleep(0.01)"),
        (WorkerTask.READ, f"{ITEM};read_bytes (/u/t.py:9)", "time.sleep(0.01)"),
        (WorkerTask.RESIZE, ITEM, "image = cv2.resize(image, (224, 224))"),
        (WorkerTask.COLLATE, f"{WORKER};fetch (~torch/utils/data/_utils/fetch.py:57);default_collate (~torch/utils/data/_utils/collate.py:401)", ""),
        (WorkerTask.COLLATE, f"{WORKER};fetch (~torch/utils/data/_utils/fetch.py:57);PaddingCollate.__call__ (/u/t.py:3)", "time.sleep(1)"),
        (WorkerTask.PIN, f"{LOOP};fetch (~a.py:1);pin_memory (~torch/utils/data/_utils/pin_memory.py:70)", ""),
        (WorkerTask.SEND, f"{WORKER};Queue.put (^multiprocessing/queues.py:94)", ""),
        (WorkerTask.OTHER, ITEM, "return self.items[index]"),
        (WorkerTask.OTHER, WORKER, ""),
    ],
)  # fmt: skip
def test_a_worker(kind: WorkerTask, text: str, line: str) -> None:
    assert task_of(stack(text).calls, Listing(line=line).line) is kind


def test_pil_reads_where_its_line_calls_read() -> None:
    calls = stack(f"{ITEM};ImageFile.load (~PIL/ImageFile.py:390)").calls
    assert task_of(calls, lambda c: "" if c.user else "s = read(self.decodermaxblock)") is WorkerTask.READ


def test_inline_work_is_worker_work() -> None:
    inline = f"{SINGLE};Data.__getitem__ (/u/train.py:16);Image.resize (~PIL/Image.py:2440)"
    assert task_of(frame_of(stack(inline).calls, Listing()).inline, Listing().line) is WorkerTask.RESIZE
    assert frame_of(stack(f"{MULTI};{POLL}").calls, Listing()).inline == ()


@pytest.mark.parametrize(
    ("text", "line", "site"),
    [
        (LOOP, "total += loss.item()", ("/u/train.py", 23, "item()")),
        (LOOP, "out = out.to('cpu')", ("/u/train.py", 23, "to('cpu')")),
        (f"{LOOP};synchronize (~torch/cuda/__init__.py:1083)", "", ("/u/train.py", 23, "synchronize()")),
        (f"{LOOP};update (~torchmetrics/a.py:5)", "", None),
        ("run (~torchmetrics/a.py:5);_str_intern (~torch/_tensor_str.py:1)", "", ("/v/lib/python3.11/site-packages/torchmetrics/a.py", 5, "print")),
    ],
)  # fmt: skip
def test_where_the_host_waits_for_the_device(text: str, line: str, site: tuple[str, int, str] | None) -> None:
    seen = frame_of(stack(text).calls, Listing(line=line))
    found = seen.wait if seen.frame is Frame.SYNC else None
    assert (None if found is None else (found.file, found.line, found.call.removeprefix("."))) == site


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        (f"{LOOP};compile_wrapper (~torch/_dynamo/eval_frame.py:1)", True),
        (f"{LOOP};inner (~torch/_compile.py:54);_fn (~torch/_dynamo/eval_frame.py:1)", False),  # disabled
        (f"{LOOP};transform (~torch/_dynamo/convert_frame.py:2)", True),
    ],
)  # fmt: skip
def test_what_is_compiled(text: str, flag: bool) -> None:
    assert compiled(stack(text).calls) is flag


PINS = "run (^threading.py:9);_pin_memory_loop (~torch/utils/data/_utils/pin_memory.py:52)"
WORKS = "_work (~iofast/prefetch/jobs.py:321)"


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (WorkerTask.PIN, f"{PINS};pin_memory (~torch/utils/data/_utils/pin_memory.py:70)"),
        (None, f"{PINS};{POLL}"),
        (None, LOOP),
        (WorkerTask.STARVED, WORKS),
        (WorkerTask.DECODE, f"{WORKS};run (~iofast/prefetch/jobs.py:114);decode_batch (~iofast/kernel/native.py:127)"),
    ],
)  # fmt: skip
def test_threads_that_work_for_a_loader(task: WorkerTask | None, text: str) -> None:
    assert thread_task(stack(text).calls, Listing().line) is task


def test_the_thread_that_writes_to_the_pipe() -> None:
    feeder = "Thread.run (^threading.py:982);Queue._feed (^multiprocessing/queues.py:231)"
    assert not feeds(stack(f"{feeder};Condition.wait (^threading.py:327)").calls)
    assert feeds(stack(f"{feeder};reduce_storage (~torch/multiprocessing/reductions.py:600)").calls)


def test_parsing() -> None:
    text = (
        'process 7:"python train.py 2 0";thread (7): MainThread;<module> (/u/train.py:9);A.b.<locals>.c (/u/a b (1).py:5) 12\n'
        "thread (0x7F): Thread-1 (_serve);accept (/usr/lib/python3.11/socket.py:294) 3\n"
        "py-spy> Sampling process 20 times a second for 1 seconds. Press Control-C to exit.\n"
        "thread (8): evil;name;x 1\n\n 5\nthread (9): idle 4\n"
    )
    first, second = parse(text)
    assert (first.thread, first.thread_name, first.looks) == (7, "MainThread", 12)
    assert first.calls[0] == Call("c", "<locals>", "/u/a b (1).py", 5, "/u/a b (1).py", True)
    assert (second.thread, second.thread_name, second.calls[0].where) == (127, "Thread-1 (_serve)", "std/socket.py")


@pytest.mark.parametrize(
    ("path", "where", "user"),
    [
        ("/opt/conda/lib/python3.12/site-packages/torch/nn/modules/conv.py", "torch/nn/modules/conv.py", False),
        ("/opt/conda/lib/python3.13t/multiprocessing/queues.py", "std/multiprocessing/queues.py", False),
        ("/src/pytorch/torch/utils/data/dataloader.py", "torch/utils/data/dataloader.py", False),
        ("/src/iofast/prefetch/jobs.py", "iofast/prefetch/jobs.py", False),
        ("<frozen importlib._bootstrap>", "std/<frozen importlib._bootstrap>", False),
        ("/u/iofast/train.py", "/u/iofast/train.py", True),
    ],
)
def test_whose_code_it_is(path: str, where: str, user: bool) -> None:
    (call,) = stack(f"f ({path}:1)").calls
    assert (call.where, call.user) == (where, user)


# --- frameworks and loaders that are not PyTorch's own


PROGRAM = """\
from feeder import net, opt, receive


def batches():
    while True:
        yield receive()


for x in batches():
    loss = net(x).sum()
    loss.backward()
    opt.step()
"""
OWN = ("pyzmq", "grpcio")


class Recorded(NamedTuple):
    """Of which library, of which thread (training, worker: a process, thread: a loader's), what it is at."""

    library: str
    thread: str
    kind: str
    stack: Stack


def recorded() -> list[Recorded]:
    """Of lines: library and version | thread | what it is at | calls; ~ is site-packages and ^ the standard library."""
    found = []
    for line in (Path(__file__).parent / "framework_stacks.txt").read_text().splitlines():
        library, thread, kind, calls = line.split(" | ", 3)
        found.append(Recorded(library, thread, kind, stack(calls)))
    return found


RECORDED = recorded()


@pytest.mark.parametrize("one", RECORDED, ids=lambda one: f"{one.library.split()[0]}-{one.thread}-{one.kind}")
def test_what_it_is_at(one: Recorded) -> None:
    if one.thread == "training":
        source = {"/u/train.py": PROGRAM} if one.library.startswith(OWN) else {}
        assert frame_of(one.stack.calls, Listing(source)).frame is Frame(one.kind)
        return
    task = task_of if one.thread == "worker" else thread_task
    assert task(one.stack.calls, lambda _: "") is WorkerTask(one.kind)


def test_none_of_them_is_compiled() -> None:
    """zero_grad() and Lightning's log() go through torch/_dynamo, where they are kept from being compiled."""
    dynamo = [one for one in RECORDED if any("torch/_dynamo/" in call.where for call in one.stack.calls)]
    assert {one.library.split()[0] for one in dynamo} >= {"lightning", "torchdata"}
    assert not any(compiled(one.stack.calls) for one in RECORDED)
