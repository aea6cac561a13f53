"""Compiles the kernels of losses over a vocabulary for an H100's instruction set, on a machine without any GPU, and prints how many.

The interpreter, in which they are tested, knows neither types nor registers. Needs Triton; test_linear_kl.py runs it, in a process apart.
"""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kullback._kernels import linear_triton, parallel_triton, rows_triton, sparse_triton, tokens_triton

# Arguments by name: pointers here, numbers without decimals otherwise; what a kernel has beyond these is a constant.
POINTERS = {
    **dict.fromkeys(["x", "y", "gradient", "capped"], "*bf16"), **dict.fromkeys(["indices", "tokens"], "*i64"),
    **dict.fromkeys(["coarse", "pivots", "flat", "slopes", "flat_slopes", "stats", "values", "for_kl", "for_logp", "scales"], "*fp32"),
    "scale": "fp32", "cap": "fp32", "w": "fp32",
}  # fmt: skip
KERNELS = [
    (sparse_triton.coarsen_kernel, {"out": "*fp32"}, {"BUCKET": True, "FLAT": True, "BLOCK": 2048, "BLOCK_K": 64}),
    (sparse_triton.coarsen_kernel, {"out": "*fp32"}, {"BUCKET": True, "FLAT": False, "BLOCK": 2048, "BLOCK_K": 1, "K": 1, "x_column": 1}),
    (sparse_triton.coarsen_kernel, {"out": "*fp32"}, {"BUCKET": False, "FLAT": False, "BLOCK": 2048, "BLOCK_K": 64}),
    (sparse_triton.spread_kernel, {"out": "*bf16"}, {"BUCKET": True, "FLAT": True, "BLOCK": 4096}),
    (sparse_triton.choose_kernel, {"out": "*bf16"}, {"BLOCK_K": 64}),
    (linear_triton.cap_kernel, {"out": "*bf16"}, {"BLOCK": 4096}),
    (linear_triton.cap_slope_kernel, {}, {"BLOCK": 4096}),
    (tokens_triton.token_gradient_kernel, {"out": "*bf16"}, {"EXACT": False, "BLOCK": 4096}),
    (rows_triton.mixtures_kernel, {"out": "*fp32"}, {"KIND": 1, "EXACT": True, "BLOCK": 2048}),
    (rows_triton.mixtures_kernel, {"out": "*fp32"}, {"KIND": 2, "EXACT": False, "BLOCK": 2048}),
    (parallel_triton.terms_kernel, {"out": "*fp32"}, {"KIND": 1, "EXACT": True, "BLOCK": 2048}),
]

for kernel, own, constants in KERNELS:
    types = {name: "constexpr" if name in constants else {**POINTERS, **own}.get(name, "i32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    compiled = triton.compile(ASTSource(kernel, types, constexprs=places), target=GPUTarget("cuda", 90, 32))
    assert "cubin" in compiled.asm
print(len(KERNELS), "compiled")
