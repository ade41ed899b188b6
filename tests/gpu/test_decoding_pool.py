"""The driver's pool of memory, from which nvImageCodec takes its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iofast.gpu.decode.nvimagecodec import KEPT, keep_memory


class TestTheDriversPool:
    """Which keeps nothing by default."""

    @pytest.mark.parametrize(
        ("before", "after"), [(0, KEPT), (KEPT - 1, KEPT), (KEPT, KEPT), (1 << 40, 1 << 40), (None, None)]
    )
    def test_keeps_what_a_batch_needs(
        self, monkeypatch: pytest.MonkeyPatch, before: int | None, after: int | None
    ) -> None:
        threshold, told = [before], []

        def pool_of(pool: Any, device: int) -> int:
            told.append(device)
            pool._obj.value = 0x5EED
            return 0 if before is not None else 801  # CUDA_ERROR_NOT_SUPPORTED

        def get(pool: Any, attribute: int, value: Any) -> int:
            assert (pool.value, attribute) == (0x5EED, 4)
            value._obj.value = threshold[0]
            return 0

        def put(pool: Any, attribute: int, value: Any) -> int:
            assert (pool.value, attribute) == (0x5EED, 4)
            threshold[0] = value._obj.value
            return 0

        driver = SimpleNamespace(
            cuDeviceGetDefaultMemPool=pool_of, cuMemPoolGetAttribute=get, cuMemPoolSetAttribute=put
        )
        monkeypatch.setattr("iofast.gpu.decode.nvimagecodec.ctypes.CDLL", lambda name: driver)
        keep_memory(3)
        assert threshold == [after]
        assert told == [3]

    def test_no_driver_and_one_without_pools(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("iofast.gpu.decode.nvimagecodec.ctypes.CDLL", lambda name: SimpleNamespace())
        keep_memory(0)

        def missing(name: str) -> None:
            raise OSError(name)

        monkeypatch.setattr("iofast.gpu.decode.nvimagecodec.ctypes.CDLL", missing)
        keep_memory(0)
