"""Compiles the kernels of losses over a vocabulary for an H100's instruction set, on a machine without any GPU, and prints how many.

The interpreter, in which they are tested, knows neither types nor registers. Needs Triton; test_linear_kl.py runs it, in a process apart.
"""

from __future__ import annotations

import re

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

torch.version.cuda = "13.0"  # instructions of NVIDIA's are asked for where PyTorch is built for its GPUs

from kullback._kernels import (  # noqa: E402
    kl_triton,
    kl_values_triton,
    linear_triton,
    mixed_triton,
    parallel_triton,
    rows_triton,
    slices_triton,
    sparse_triton,
    tokens_triton,
)


@triton.jit
def word_kernel(scales, words):
    tl.store(words, slices_triton.word(tl.load(scales), tl.load(scales + 1)))


# Arguments by name: pointers here, numbers without decimals otherwise; what a kernel has beyond these is a constant.
POINTERS = {
    **dict.fromkeys(["x", "y", "gradient", "capped"], "*bf16"), **dict.fromkeys(["indices", "tokens"], "*i64"),
    **dict.fromkeys(["terms", "upstream", "found", "partial", "coarse", "pivots", "flat", "slopes", "flat_slopes", "stats"], "*fp32"),
    **dict.fromkeys(["values", "for_kl", "for_logp", "scales"], "*fp32"),
    **dict.fromkeys(["words", "own_words", "c_words"], "*i64"), "counter": "*i32",
    **dict.fromkeys(["scale", "cap", "w", "among", "per", "SETTLED"], "fp32"),
    **{f"{side}{i}": "fp32" for side in "ab" for i in range(1, 7)},
}  # fmt: skip
ONE = {"x_column": 1, "y_column": 1}
WHOLE = {"EXACT": True, "FIRST": True, "SECOND": True, "GROUP": 8, "BLOCK": 1024}
WIDE = {"EXACT": False, "GROUP": 4}
FINISH = {"SLICES": 16, "ROWS": 32, "ALL": 1024}
KERNELS = [
    (kl_triton.kl_kernel, {}, {"SLICES": 16, **WHOLE, **ONE}),
    (
        kl_triton.kl_kernel,
        {**dict.fromkeys(["x", "y", "gradient"], "*fp16"), **dict.fromkeys(["scales", "upstream"], "fp32")},
        {"SLICES": 1, **WHOLE, "scale_row": None, "upstream_row": None},
    ),
    (kl_triton.kl_kernel, dict.fromkeys(["x", "y", "gradient"], "*fp32"), {"SLICES": 128, **WHOLE, **WIDE, "SECOND": False}),
    (mixed_triton.mixed_kernel, {}, {"KIND": 1, "OF_Q": True, "SLICES": 16, "THIRD": True, **WHOLE, **ONE}),
    (mixed_triton.mixed_kernel, {}, {"KIND": 0, "OF_Q": False, "SLICES": 1, "THIRD": True, **WHOLE}),
    (
        mixed_triton.mixed_kernel,
        dict.fromkeys(["x", "gradient"], "*fp32"),
        {"KIND": 2, "OF_Q": False, "SLICES": 16, "THIRD": True, **WHOLE, **WIDE},
    ),
    (slices_triton.finish_kernel, {"out": "*fp32"}, {"TOTAL": False, **FINISH}),
    (slices_triton.finish_kernel, {"out": "*fp32", "upstream": "fp32"}, {"TOTAL": True, **FINISH, "upstream_row": None}),
    (kl_values_triton.slices_kernel, dict.fromkeys(["x", "y"], "*fp32"), {**WIDE, "BLOCK": 1024, **ONE}),
    (kl_values_triton.join_kernel, {"out": "*fp32", "scales": "fp32"}, {"SLICES": 4, "ROWS": 4, "scale_row": None}),
    (word_kernel, {}, {}),
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
    if kernel is word_kernel:
        # A word of 0 would be waited for without end: the bit that keeps every one from it must be set, whatever the sum.
        assert re.search(r"or\.b32\s+%r\d+, %r\d+, -2147483648", compiled.asm["ptx"]), compiled.asm["ptx"]
    if kernel is kl_triton.kl_kernel and constants["SLICES"] == 16:
        # Where an atomic operation is waited for, its result must reach the warps that did not take part: through shared memory.
        asked = re.findall(r"atom\.global\.gpu\.relaxed\.add\.u64.*\n(?:.*\n){0,6}?.*st\.shared\S*\.b64", compiled.asm["ptx"])
        assert len(asked) == compiled.asm["ptx"].count("relaxed.add.u64"), compiled.asm["ptx"]
print(len(KERNELS), "compiled")
