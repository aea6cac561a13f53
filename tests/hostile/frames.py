"""The frameworks of the generated calls: how an array of a case is made in each layout, and how a function is called there.

Each imports its framework when it is first asked for. Where calls are compiled, shapes are fixed and functions few.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from typing import Any

import numpy as np

ALL = ("kl", "kl", "js", "jeffreys", "renyi", "entropy", "cross_entropy", "rel_entr", "kl_div")


class Frame:
    name = ""
    layouts: tuple[str, ...] = ()
    functions: tuple[str, ...] = ALL
    dtypes: tuple[str, ...] = ("float64", "float64", "float32", "float32", "float16", "bfloat16")
    # Does it say what is wrong with a row? (Compiled code gives NaN.)
    looks = True
    double = True
    # Are numbers below the smallest normal one taken for zero?
    flushes = False
    integers = True
    gradients = False
    # The shape of all arrays, if every new shape is compiled anew.
    shape: tuple[int, ...] | None = None
    any_order = True
    # The shares of cases with two forms, and without options.
    mixed = 0.2
    plain = 0.35

    def array(self, values: np.ndarray, layout: str) -> Any:
        raise NotImplementedError

    def option(self, values: np.ndarray) -> Any:
        return values

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def arguments(self, case: Any) -> tuple[list[Any], dict[str, Any]]:
        from array_cases import as_numpy

        made = [as_numpy(a) for a in case["arrays"]]
        options = {n: self.option(as_numpy(v)) if isinstance(v, dict) else v for n, v in case["options"].items()}
        if isinstance(options.get("form"), list):
            options["form"] = tuple(options["form"])
        if case["function"] in ("rel_entr", "kl_div"):
            options.pop("form", None)
        move = options.pop("move", None)
        if move is not None:
            place = min(move, min(x.ndim for x in made) - 1)
            options["axis"] = -1 - place
            made = [np.moveaxis(x, -1, -1 - place) for x in made]
        return [self.array(x, a["layout"]) for x, a in zip(made, case["arrays"])], options

    def call(self, case: Any, function: Any) -> tuple[np.ndarray, list[np.ndarray | None] | None]:
        arrays, options = self.arguments(case)
        return self.numpy(function(*arrays, **options)), None


def laid_out(x: np.ndarray, layout: str) -> Any:
    """The same numbers, lying in memory in another way."""
    if layout == "list":
        return x.tolist() if x.size else x
    if layout == "readonly":
        x = x.copy()
        x.flags.writeable = False
    elif layout == "big-endian" and x.dtype.name != "bfloat16":
        x = x.astype(x.dtype.newbyteorder(">"))
    elif layout == "fortran":
        x = x.copy(order="F")
    elif layout == "reversed":
        x = x[(slice(None, None, -1),) * x.ndim].copy()[(slice(None, None, -1),) * x.ndim]
    elif layout == "strided":
        wide = np.full([2 * n for n in x.shape], 77, dtype=x.dtype)
        wide[(slice(None, None, 2),) * x.ndim] = x
        x = wide[(slice(None, None, 2),) * x.ndim]
    elif layout == "zero-stride" and x.ndim > 1 and x.shape[0] and all(np.array_equal(x[0], row, equal_nan=True) for row in x):
        x = np.broadcast_to(x[0], x.shape)
    elif layout == "unaligned":
        x = np.frombuffer(b"\1" + x.tobytes(), dtype=x.dtype, offset=1).reshape(x.shape)
    elif layout == "subclass":
        x = x.view(type("Subclass", (np.ndarray,), {}))
    return x


class NumPy(Frame):
    name = "numpy"
    layouts = ("list", "readonly", "big-endian", "fortran", "reversed", "strided", "zero-stride", "unaligned", "subclass")

    def array(self, values, layout):
        return laid_out(values, layout)


class Torch(Frame):
    name = "torch"
    layouts = ("list", "numpy", "transposed", "strided", "expanded", "negative", "parameter", "inference")
    gradients = True

    def array(self, values, layout):
        import torch

        if layout == "list" and values.size:
            return values.tolist()
        if layout == "numpy" and values.dtype.name != "bfloat16":
            return values
        x = torch.tensor(values.astype(np.float32)).bfloat16() if values.dtype.name == "bfloat16" else torch.tensor(values)
        if layout == "transposed" and x.ndim > 1:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        elif layout == "strided" and x.ndim:
            x = torch.stack([x, torch.full_like(x, 7)], -1)[..., 0]
        elif layout == "expanded" and x.ndim > 1 and x.shape[0] and bool((x == x[:1]).all()):
            x = x[:1].expand(x.shape)
        elif layout == "negative" and x.is_floating_point():
            x = torch._neg_view(-x)
        elif layout == "parameter" and x.is_floating_point():
            x = torch.nn.Parameter(x)
        elif layout == "inference":
            with torch.inference_mode():
                x = x.clone()
        return x

    def option(self, values):
        import torch

        return torch.tensor(values)

    def numpy(self, x):
        import torch

        assert isinstance(x, torch.Tensor), f"a {type(x).__name__} came out"
        return x.detach().numpy()

    def call(self, case, function):
        import torch

        arrays, options = self.arguments(case)
        if not case["gradient"]:
            return self.numpy(function(*arrays, **options)), None
        arrays = [x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in arrays]
        value = function(*arrays, **options)
        wanted = [x for x in arrays if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if not wanted or not value.requires_grad:
            return self.numpy(value), None
        found = iter(torch.autograd.grad(value.sum(), wanted, allow_unused=True))
        gradients = [next(found) if isinstance(x, torch.Tensor) and x.is_floating_point() else None for x in arrays]
        return self.numpy(value), [None if g is None else g.float().numpy() if g.dtype == torch.bfloat16 else g.numpy() for g in gradients]


class Jax(Frame):
    """Compiled, with x64: a program for each function, form, dtype and set of options."""

    name = "jax"
    functions = ("kl", "js", "renyi", "cross_entropy", "kl_div")
    dtypes = ("float32", "float64")
    flushes = True
    looks = False
    integers = False
    gradients = True
    shape = (2, 4)
    any_order = False
    mixed = 0.0
    plain = 1.0

    @staticmethod
    @cache
    def compiled(function: str, options: tuple[tuple[str, Any], ...]) -> Any:
        import jax
        import jax.numpy as jnp

        import kullback as kb

        def both(*arrays):
            value, back = jax.vjp(lambda *xs: getattr(kb, function)(*xs, **dict(options)), *arrays)
            return value, back(jnp.ones_like(value))

        return jax.jit(both)

    def call(self, case, function):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax

        with jax.enable_x64(True):
            arrays, options = self.arguments(case)
            value, gradients = self.compiled(case["function"], tuple(sorted(options.items())))(*arrays)
            return np.asarray(value), [np.asarray(g) for g in gradients] if case["gradient"] else None

    def array(self, values, layout):
        import jax.numpy as jnp

        return jnp.asarray(values)


class TensorFlow(Frame):
    """Eager: nothing is compiled."""

    name = "tensorflow"
    layouts = ("list", "numpy")
    flushes = True
    gradients = True

    def numpy(self, x):
        assert hasattr(x, "device"), f"a {type(x).__name__} came out"
        return x.numpy()

    def array(self, values, layout):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        import tensorflow as tf

        if layout == "list" and values.size:
            return values.tolist()
        if layout == "numpy" and values.dtype.name != "bfloat16":
            return values
        return tf.convert_to_tensor(values)

    option = property(lambda self: lambda values: self.array(values, "plain"))  # type: ignore[assignment]

    def call(self, case, function):
        arrays, options = self.arguments(case)
        import tensorflow as tf

        if not case["gradient"]:
            return self.numpy(function(*arrays, **options)), None
        arrays = [tf.convert_to_tensor(x) if tf.is_tensor(x) else x for x in arrays]
        watched = [x for x in arrays if tf.is_tensor(x)]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            value = function(*arrays, **options)
            total = tf.reduce_sum(value)
        found = iter(tape.gradient(total, watched))
        gradients = [next(found) if tf.is_tensor(x) else None for x in arrays]
        return self.numpy(value), [None if g is None else g.numpy() for g in gradients]


class Tinygrad(Frame):
    name = "tinygrad"
    functions = ("kl", "js", "entropy")
    dtypes = ("float32", "float64")
    flushes = True
    integers = False
    shape = (2, 3)
    any_order = False
    mixed = 0.0
    plain = 1.0

    def array(self, values, layout):
        for name, value in (("PARALLEL", "0"), ("NOOPT", "1")):
            os.environ.setdefault(name, value)
        if shutil.which("clang") is None:
            os.environ.setdefault("DEV", "PYTHON")  # tinygrad's own interpreter
        from tinygrad import Tensor

        return Tensor(values).realize()

    def numpy(self, x):
        return x.numpy()


FRAMES: dict[str, Frame] = {frame.name: frame for frame in (NumPy(), Torch(), Jax(), TensorFlow(), Tinygrad())}
