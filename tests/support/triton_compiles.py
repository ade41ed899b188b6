"""Compile every Triton kernel for an absent GPU, and print the results as JSON.

It is a separate program, because Triton decides at import whether it interprets. The interpreter is lenient about types
and accepts kernels that no GPU would run.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from iofast.pixels import triton_geometry, triton_pixels

POINTERS = {
    "data": "*u8",
    "images": "*u8",
    "table": "*i32",
    "starts": "*i32",
    "weights": "*i16",
    "constants": "*fp32",
    "means": "*fp32",
    "upto": "*i32",
    "sums": "*i64",
}


def compiled(kernel: Any, out: str, capability: int, **known: Any) -> dict[str, Any]:
    offsets = {"offsets": "*i64" if "data" in kernel.arg_names else "*i32"}  # of images, or addends of steps
    types = POINTERS | offsets | dict.fromkeys(known, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    if "out" in signature:
        signature["out"] = f"*{out}"
    source = ASTSource(fn=kernel, signature=signature, constexprs=known)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": False})
    varying = [each.name for each in kernel.params if each.do_not_specialize]  # no code of their own for 1 and 16
    fused = made.asm["ptx"].count("fma.rn.f32")
    return {"kernel": kernel.__name__, "bytes": len(made.asm["cubin"]), "fused": fused, "varying": varying}


def main(capability: int) -> None:
    """Compile every kernel, with each value of the compile-time constants at least once."""
    block = triton_geometry._BLOCK
    found = [compiled(triton_geometry._windows, "u8", capability, BLOCK=128)]
    for last, out in ((True, "bf16"), (False, "fp16"), (True, "u8"), (False, "fp32")):
        known = {"LAST": last, "SCALED": out != "u8", "BLOCK": block}
        found.append(compiled(triton_geometry._resample, out, capability, **known))
    block = triton_pixels._BLOCK
    found.append(compiled(triton_pixels._gray_sums, "u8", capability, STEPS=5, BLOCK=block))
    for steps, erasings, mixes, out in ((5, 1, False, "bf16"), (5, 0, True, "fp16"), (0, 2, True, "fp32")):
        known = {"STEPS": steps, "ERASINGS": erasings, "MIXES": mixes, "BLOCK": block}
        found.append(compiled(triton_pixels._finish, out, capability, **known))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
