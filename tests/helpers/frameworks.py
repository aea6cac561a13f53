"""The frameworks every test runs on: how to make an array, call a function (eagerly or compiled) and differentiate it.

Importing this module loads none of them. Each is imported when a test first uses it, so a run of a few tests starts quickly.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What compilers have made is kept for other files, other processes and later runs. `make clean` removes it.
CACHE = Path(__file__).resolve().parents[2] / "build/test-cache"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE / "inductor"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# JAX inspects the file of every frame of every exception otherwise, caught ones included.
os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
# Inductor compiles in this process. Helper processes that import PyTorch gain nothing while two tests run at a time.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# tinygrad compiles in this process too, and leaves loops as they are. Unrolling makes one divergence take 13 s instead of 3.
# test_transforms_tinygrad covers unrolled loops.
os.environ.setdefault("PARALLEL", "0")
os.environ.setdefault("NOOPT", "1")
# XLA then compiles a small program in 40% of the time. For tests that do not judge XLA's arithmetic (`--quick-xla`).
QUICK_XLA = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
}
if shutil.which("clang") is None:
    os.environ.setdefault("DEV", "PYTHON")  # tinygrad's CPU device needs clang; its interpreter needs nothing but is slow

with contextlib.suppress(ImportError):
    # Some builds of PyTorch bring Triton. Its LLVM aborts the process if TensorFlow's is loaded first.
    import triton  # noqa: F401

import numpy as np  # noqa: E402

Function = Callable[..., Any]


class Lazy:
    """A module that a test imports when it first uses it. The other tests of its file then run where its framework is left out."""

    def __init__(self, name: str, *path: str) -> None:
        self._name, self._path = name, path

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks every name in a file whether it is a fixture
            raise AttributeError(attribute)
        return functools.reduce(getattr, (*self._path, attribute), importlib.import_module(self._name))


# The libraries that need each framework. `--frameworks` and KULLBACK_TEST_FRAMEWORKS choose among the keys.
LIBRARIES = {
    "numpy": (),
    "array-api-strict": ("array_api_strict",),
    "torch": ("torch", "torchmetrics"),
    "jax": ("jax", "jaxlib", "optax", "distrax", "numpyro"),
    "tensorflow": ("tensorflow", "tensorflow_probability", "keras", "tf_keras"),
    "tinygrad": ("tinygrad",),
}


def selected() -> list[str]:
    """The frameworks to test: those of KULLBACK_TEST_FRAMEWORKS, and all without that variable."""
    text = os.environ.get("KULLBACK_TEST_FRAMEWORKS", "")
    names = [name.strip() for name in text.split(",") if name.strip()] or list(LIBRARIES)
    unknown = sorted(set(names) - set(LIBRARIES))
    if unknown:
        raise ValueError(f"KULLBACK_TEST_FRAMEWORKS names {', '.join(unknown)}; choose from {', '.join(LIBRARIES)}")
    return names


def needed_by(program: str) -> list[str]:
    """The frameworks that a module imports at its top, or in its examples. The mark `needs` takes them."""
    return [
        name
        for name, libraries in LIBRARIES.items()
        if any(re.search(rf"^(?:\s*(?:>>>|\.\.\.) +)?(?:import|from) .*\b{library}\b", program, re.MULTILINE) for library in libraries)
    ]


class Framework:
    """`run` and the like take a function of native arrays, and NumPy arguments; results come back as NumPy arrays."""

    name: str
    # The key of LIBRARIES.
    library: str
    differentiable = True
    compiled = False
    # Can it hold float64 at all?
    double = True
    # Each new function, shape and dtype is compiled, for seconds: tests run a part of their cases there, and say which.
    costly = False
    # Only small arrays, to end this year.
    slow = False

    def array(self, x: Any) -> Any:
        raise NotImplementedError

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def run(self, function: Function, *arrays: Any) -> np.ndarray:
        return self.numpy(self.transform(function)(*map(self.array, arrays)))

    def transform(self, function: Function) -> Function:
        return function

    def value_and_gradients(self, function: Function, *arrays: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        """function(*arrays), and the derivatives of its sum with respect to each array, from one compiled function."""
        raise NotImplementedError

    def gradients(self, function: Function, *arrays: Any) -> list[np.ndarray]:
        return self.value_and_gradients(function, *arrays)[1]

    def __repr__(self) -> str:
        return self.name


class NumPy(Framework):
    name = library = "numpy"
    differentiable = False

    def array(self, x):
        return np.asarray(x)


class Strict(Framework):
    name = library = "array-api-strict"
    differentiable = False

    def array(self, x):
        import array_api_strict

        return array_api_strict.asarray(x)

    def numpy(self, x):
        return np.from_dlpack(x)


class Torch(Framework):
    name = library = "torch"

    def array(self, x):
        import torch

        x = np.asarray(x)
        # torch does not know NumPy's bfloat16
        return torch.tensor(x.astype(np.float32)).bfloat16() if x.dtype.name == "bfloat16" else torch.tensor(x)

    def numpy(self, x):
        return x.detach().numpy()

    def value_and_gradients(self, function, *arrays):
        import torch

        native = [self.array(x).requires_grad_() for x in arrays]
        value = self.transform(function)(*native)
        return self.numpy(value), [g.numpy() for g in torch.autograd.grad(value.sum(), native)]


class TorchCompiled(Torch):
    """Traced by Dynamo, with AOTAutograd's graphs of forward and backward run as they are."""

    name = "torch-compiled"
    compiled = costly = True
    backend = "aot_eager"

    def transform(self, function):
        import torch

        # The default limit of recompilations would quietly fall back to eager.
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, dynamic=False, backend=self.backend)


def quicken_jax() -> None:
    """JAX registers all MLIR dialects anew for each program, a fifth of the time of a small one. Here it registers them once."""
    from jax._src.interpreters import mlir

    if not hasattr(mlir.make_ir_context, "cache_info"):
        mlir.make_ir_context = functools.cache(mlir.make_ir_context)


def quicken_inductor() -> None:
    """Inductor fills the tables of a singleton anew for each operation, which is half of its time. Here it fills them once."""
    from torch._inductor import dtype_propagation, utils

    handler = dtype_propagation.DtypePropagationOpsHandler
    if hasattr(handler, "rules"):
        return
    fill, handler.rules = handler.__init__, 0

    def fill_once(self):
        if handler.rules != len(utils.op_dtype_propagation_rules):
            fill(self)
            handler.rules = len(utils.op_dtype_propagation_rules)

    handler.__init__ = fill_once


class TorchInductor(TorchCompiled):
    """The same graphs as C++, which takes seconds each: for tests of arithmetic, which is all that Inductor may change."""

    name = "torch-inductor"
    backend = "inductor"

    def transform(self, function):
        quicken_inductor()
        return super().transform(function)


class Jax(Framework):
    name = library = "jax"
    double = False
    costly = True  # operation by operation

    def array(self, x):
        import jax.numpy as jnp

        return jnp.asarray(x)

    def value_and_gradients(self, function, *arrays):
        import jax
        import jax.numpy as jnp

        def differentiate(*xs):
            value, pull_back = jax.vjp(function, *xs)
            return value, pull_back(jnp.ones_like(value))

        value, gradients = self.transform(differentiate)(*map(self.array, arrays))
        return np.asarray(value), [np.asarray(g) for g in gradients]


class JaxJit(Jax):
    name = "jax-jit"
    compiled = True

    def transform(self, function):
        import jax

        return jax.jit(function)


class JaxDouble(JaxJit):
    """JAX with x64 on: its float64."""

    name = "jax-jit-x64"
    double = True

    def run(self, function, *arrays):
        import jax

        with jax.enable_x64(True):
            return super().run(function, *arrays)

    def value_and_gradients(self, function, *arrays):
        import jax

        with jax.enable_x64(True):
            return super().value_and_gradients(function, *arrays)


class TensorFlow(Framework):
    name = library = "tensorflow"

    def array(self, x):
        import tensorflow as tf

        return tf.convert_to_tensor(x)

    def value_and_gradients(self, function, *arrays):
        import tensorflow as tf

        def differentiate(*native):
            with tf.GradientTape() as tape:
                tape.watch(native)
                value = function(*native)
                total = tf.reduce_sum(value)
            return value, tape.gradient(total, native)

        value, gradients = self.transform(differentiate)(*map(self.array, arrays))
        return np.asarray(value), [np.asarray(g) for g in gradients]


class TensorFlowGraph(TensorFlow):
    name = "tensorflow-function"
    compiled = costly = True

    def transform(self, function):
        import tensorflow as tf

        return tf.function(function)


class TensorFlowXla(TensorFlow):
    name = "tensorflow-xla"
    compiled = costly = True

    def transform(self, function):
        import tensorflow as tf

        # Autograph, which rewrites everything that is called, is tensorflow-function's part.
        return tf.function(function, jit_compile=True, autograph=False)


class Tinygrad(Framework):
    name = library = "tinygrad"
    costly = True
    # The interpreter takes a second for what compiled code does in a millisecond.
    slow = os.environ.get("DEV") == "PYTHON"

    def array(self, x):
        import tinygrad

        x = np.asarray(x)
        if x.dtype.name == "bfloat16":  # NumPy's own cannot be handed over, nor can every clang make one
            return tinygrad.Tensor(x.view(np.uint16)).bitcast(tinygrad.dtypes.bfloat16)
        return tinygrad.Tensor(x).realize()

    def numpy(self, x):
        return x.numpy()

    def value_and_gradients(self, function, *arrays):
        def differentiate(*native):
            value = function(*native)
            return [value, *value.sum().gradient(*native)]

        results = self.transform(differentiate)(*map(self.array, arrays))
        # In one schedule: each alone would compile the forward pass again.
        results[0].realize(*results[1:])
        value, *gradients = [x.numpy() for x in results]
        return value, gradients


class TinygradJit(Tinygrad):
    name = "tinygrad-jit"
    compiled = True

    def transform(self, function):
        import tinygrad

        def realized(*xs):
            result = function(*xs)
            first, *others = result if isinstance(result, list) else [result]
            first.realize(*others)
            return result

        jitted = tinygrad.TinyJit(realized)

        def third_call(*xs):
            # TinyJit runs eagerly, then captures, then replays.
            jitted(*xs)
            jitted(*xs)
            return jitted(*xs)

        return third_call


EVERY: list[Framework] = [
    NumPy(), Strict(), Torch(), TorchCompiled(), Jax(), JaxJit(), JaxDouble(), TensorFlow(), TensorFlowGraph(), TensorFlowXla(),
    Tinygrad(), TinygradJit(),
]  # fmt: skip
ALL = [framework for framework in EVERY if framework.library in selected()]
# For tests of what all functions compute.
WITH_INDUCTOR = [TorchInductor() if framework.name == "torch-compiled" else framework for framework in ALL]
