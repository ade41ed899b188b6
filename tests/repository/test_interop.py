"""Other programs read our files: LMDB's own tools, OpenCV, simplejpeg, TensorFlow. `make interop` has them all."""

import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from iofast import FastDataset, pack
from iofast.kernel import native

pytestmark = pytest.mark.interop
COUNT = 30
Decoder = Callable[[bytes], NDArray[np.uint8]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("interop")
    rng = np.random.default_rng(5)
    for number in range(COUNT):
        folder = root / "images" / ("even", "odd")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (7, 9, 3), np.uint8))
        small.resize((300 + number, 280), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")
    pack(root / "images", root / "out.lmdb", resize=128)
    return root / "out.lmdb"


def payloads(packed: Path) -> list[bytes]:
    """Every JPEG, by the LMDB library alone."""
    with lmdb.open(str(packed), subdir=False, readonly=True, lock=False) as database, database.begin() as transaction:
        return [bytes(value) for key, value in transaction.cursor() if key.endswith(b".jpg")]


def opencv() -> Decoder:
    cv2 = pytest.importorskip("cv2")
    return lambda payload: cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]


def simplejpeg() -> Decoder:
    decode: Decoder = pytest.importorskip("simplejpeg").decode_jpeg
    return decode


def nvimgcodec() -> Decoder:
    """On the CPU: `pip install nvidia-nvimgcodec-cu12` is enough."""
    codec = pytest.importorskip("nvidia.nvimgcodec")
    cpu_only = -99999  # NVIMGCODEC_DEVICE_CPU_ONLY
    decoder = codec.Decoder(device_id=cpu_only, backends=[codec.Backend(codec.CPU_ONLY)])
    return lambda payload: np.array(decoder.decode(payload))


@pytest.mark.parametrize("make", [opencv, simplejpeg, nvimgcodec])
def test_others_see_our_pixels_with_restart_markers_and_without(packed: Path, make: Callable[[], Decoder]) -> None:
    decode, dataset = make(), FastDataset(packed)
    for index, payload in enumerate(payloads(packed)):
        assert native.read_header(payload).restart
        pixels = decode(payload)
        assert np.array_equal(pixels, decode(native.rewrite(payload, 0, native.STANDARD)))
        if make is not nvimgcodec:  # another libjpeg-turbo may round its IDCT differently
            assert np.abs(np.asarray(dataset[index][0]).astype(int) - pixels).max() <= 3


@pytest.mark.parametrize("program", ["djpeg", "jpegtran"])
def test_libjpegs_own_tools(packed: Path, program: str) -> None:
    """`jpegtran` without restart markers is our own rewriting without them: the same coefficients, and best tables."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (apt-get install libjpeg-turbo-progs)")
    options = ["-optimize", "-copy", "all"] if program == "jpegtran" else []
    for payload in payloads(packed):
        made = subprocess.run([program, *options], input=payload, capture_output=True, timeout=60)
        assert (made.returncode, made.stderr) == (0, b"")
        if program == "jpegtran":
            assert made.stdout == native.rewrite(payload, 0)
        else:
            with Image.open(io.BytesIO(made.stdout)) as image:
                assert np.abs(np.asarray(image, int) - native.decode(payload)).max() <= 3


@pytest.mark.parametrize("program", ["mdb_stat", "mdb_dump"])
def test_lmdbs_own_tools(packed: Path, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (apt-get install lmdb-utils)")
    run = subprocess.run([program, "-n", str(packed)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "Entries:" in run.stdout if program == "mdb_stat" else "HEADER=END" in run.stdout
