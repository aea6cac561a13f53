"""Triton's interpreter without what takes most of its time: importing this makes it so (`pytest -p triton_interpreter`).

A launch replaces the functions of triton.language by interpreted ones. Every call of a function within a kernel does so again, and looks
at all of them to find nothing left to replace. And sums of our own (`tl.reduce`) call the interpreter for each element.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

replace = interpreter._patch_lang


@cache
def languages(function):
    """What a function's module knows of the language: kernels the whole, Triton's own functions its core."""
    return [value for value in function.__globals__.values() if value is tl or value is tl.core]


def replace_what_is_not(function):
    if any(tl.core.is_builtin(language.load) for language in languages(function)):
        return replace(function)
    return None  # nobody looks at what a call within a kernel has replaced


def reduce_by_halves(self, given):
    """The second half of the elements onto the first, as GPUs do; blocks are powers of two."""
    assert self.axis is not None
    assert not self.keep_dims
    parts = [np.moveaxis(x.handle.data, self.axis, 0) for x in given]
    while (half := len(parts[0]) // 2) > 0:
        halves = [self.to_tensor(part[side], x.dtype) for side in np.s_[:half, half:] for part, x in zip(parts, given)]
        found = self.combine_fn.fn(*halves)
        parts = [x.handle.data for x in (found if isinstance(found, tuple) else (found,))]
    return [self.to_tensor(part[0], x.dtype) for part, x in zip(parts, given)]


interpreter._patch_lang = replace_what_is_not
interpreter.ReduceOps.generic_reduce = reduce_by_halves
