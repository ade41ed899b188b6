"""The second step of a sample, its pixels: decoded, and once more if they were damaged on their way or have changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic_ns
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.boxes import output_sizes
from iofast.containers.changed import Rows, decode_again
from iofast.kernel import Payloads
from iofast.loader.canvas import Canvas, Ragged, RowsToDecode, Uniform, size_of
from iofast.loader.finishing import Storage, finish_of
from iofast.loader.plan import SamplePlan
from iofast.loader.resident import Resident
from iofast.loader.there import KeptImages, SentJpegs
from iofast.loader.views import Several
from iofast.meter import Stages
from iofast.work import no_work

Decode = Callable[[kernel.Context, Payloads, NDArray[np.intp]], NDArray[np.int32]]  # payloads of rows -> their status

OTHER_SIZE = ""  # the reason of a replacement whose image has another size than the batch: no failure of the image


class Pixels:
    """The images of a plan's samples.

    size    (height, width) of all; None if each has its own, or several views
    canvas  where they are decoded
    """

    def __init__(self, plan: SamplePlan) -> None:
        self.plan, self._spec = plan, plan.parts.spec
        pipeline, self.size = self._spec.pipeline, None
        if not pipeline.views and (pipeline.size is not None or self._spec.options.ragged == "raise"):
            self.size = pipeline.size or size_of(plan.boxes)
        self.canvas = self._canvas()
        # of all rows, if the kernel does them in the call that decodes
        self._finish_all = self._finish(np.arange(len(plan))) if self._spec.finishes else None

    def make(self, context: kernel.Context, stages: Stages, rows: NDArray[np.intp]) -> tuple[int, int]:
        """Decode consecutive rows. Return the nanoseconds that reading and decoding took."""
        return self._make(context, stages, rows, self._decode)

    def make_replaced(self, context: kernel.Context, stages: Stages, rows: NDArray[np.intp]) -> None:
        """Decode rows whose samples have been replaced by others."""
        fits = self._renewed(rows)
        self.plan.reasons |= dict.fromkeys(rows[~fits].tolist(), OTHER_SIZE)
        self._make(context, stages, rows[fits], self._decode_again)

    def make_rest(self, context: kernel.Context, stages: Stages, rows: list[int]) -> None:
        """Decode on the CPU the rows that the device could not decode."""
        step = self.plan.parts.resources.slice
        for at in range(0, len(rows), step):
            self._make(context, stages, np.array(rows[at : at + step], np.intp), self._decode_again)

    def _canvas(self) -> Canvas:
        spec, resources, plan = self._spec, self.plan.parts.resources, self.plan
        memory = resources.float_memory if spec.finishes else resources.memory
        dtype = spec.dtype if spec.finishes or spec.pipeline.views else torch.uint8
        storage = Storage(dtype, spec.options.memory_format)
        if spec.pipeline.views:
            return Several(plan, memory, storage)
        if self.size is None:
            return Ragged(plan, memory, storage)
        if plan.parts.resident is not None and plan.parts.resident.files is not None:
            return KeptImages(plan, self.size, plan.parts.resident)
        if resources.decoding.tables is not None:
            return SentJpegs(plan, self.size, memory, resources.decoding.tables)
        return Uniform(plan, self.size, memory, storage)

    def _make(self, context: kernel.Context, stages: Stages, rows: NDArray[np.intp], decode: Decode) -> tuple[int, int]:
        plan, resident = self.plan, self.plan.parts.resident
        if resident is not None and resident.files is None:
            self._cut(resident, rows, decode)
            return 0, 0
        rows = self.canvas.to_read(rows)
        if not len(rows):
            return 0, 0
        begun, read = monotonic_ns(), -context.read_ns
        with self._payloads(rows) as source:
            read += monotonic_ns() - begun  # opening files
            failed = self._settle(context, source, rows, decode(context, source, rows))
        read += context.read_ns
        decoding = monotonic_ns() - begun - read
        stages.read.add(len(rows), work_ns=read, nbytes=int(plan.located.length[rows].sum()))
        stages.decode.add(len(rows), work_ns=decoding, failed=failed)
        return read, decoding

    def _finish(self, rows: NDArray[np.intp]) -> kernel.Finish:
        """The pixel operations of `rows`, drawn for the sizes of their images."""
        pipeline, boxes = self._spec.pipeline, self.plan.boxes[rows]
        sizes: NDArray[Any] = output_sizes(boxes) if self.size is None else np.array([self.size])
        work = no_work(len(rows))
        if pipeline.drawn:
            work = self.plan.work(rows, np.broadcast_to(sizes, (len(rows), 2)))
        return finish_of(pipeline.ops, work, self._spec.dtype)

    def _cut(self, resident: Resident, rows: NDArray[np.intp], decode: Decode) -> None:
        """Cut `rows` out of a dataset in host memory."""
        plan, source = self.plan, resident.payloads(self.plan.indices[rows])
        context = kernel.Context(self._spec.decode)  # its images do not count as decoded
        status = decode(context, source, rows)
        context.close()
        for number in np.flatnonzero(status).tolist():
            plan.reasons.setdefault(int(rows[number]), kernel.failure(int(status[number]), source, number))

    @contextmanager
    def _payloads(self, rows: NDArray[np.intp]) -> Iterator[Payloads]:
        """The payloads of `rows`, without checksums if all of them have been compared already.

        Not without some of them: the kernel would need a call for each run of rows that are alike.
        """
        reader, check = self._spec.dataset.reader, self._spec.options.check is not None
        compared = self.plan.parts.resources.compared
        with reader.payloads(self.plan.located.rows(rows), 0, len(rows)) as payloads:
            if check and compared is not None and payloads.indexed is not None and not reader.index_is_stale:
                done = compared[self.plan.indices[rows]] & (payloads.indexed[:, 0] != kernel.Kind.ENCODED)
                check = not done.all()
            yield payloads.checked(check)

    def _settle(
        self, context: kernel.Context, source: Payloads, rows: NDArray[np.intp], status: NDArray[np.int32]
    ) -> int:
        """Decode those of `rows` again that need it, note why others failed, and return how many did."""
        plan, compared = self.plan, self.plan.parts.resources.compared
        if compared is not None:
            compared[plan.indices[rows[status == 0]]] = True
        if not status.any():
            return 0
        wanted = Rows(self._spec.dataset.reader, plan.located, rows, source)
        decode_again(wanted, status, partial(self._decode_again, context), self._changed)
        failed = np.flatnonzero(status).tolist()
        for number in failed:
            plan.reasons.setdefault(int(rows[number]), kernel.failure(int(status[number]), source, number))
        return len(failed)

    def _decode(self, context: kernel.Context, source: Payloads, rows: NDArray[np.intp]) -> NDArray[np.int32]:
        finish = self._finish_all
        if finish is not None:
            finish = finish._replace(work=finish.work.rows(slice(int(rows[0]), int(rows[-1]) + 1)))
        return self.canvas.decode(RowsToDecode(context, source, rows, finish))

    def _decode_again(self, context: kernel.Context, source: Payloads, rows: NDArray[np.intp]) -> NDArray[np.int32]:
        finish = self._finish(rows) if self._spec.finishes else None
        return self.canvas.decode_again(RowsToDecode(context, source, rows, finish))

    def _changed(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Draw the boxes of `rows` for their present sizes."""
        self.plan.cut(rows)
        return self._renewed(rows)

    def _renewed(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Prepare `rows`, whose boxes have changed. Return which of them can be decoded.

        In a batch whose size no transform fixes, images of another size cannot.
        """
        self.canvas.renew(rows)
        return np.ones(len(rows), np.bool_) if self.size is None else self.plan.has_size(rows, self.size)
