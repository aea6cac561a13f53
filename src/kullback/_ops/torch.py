"""PyTorch primitives."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from typing import Any

import torch

from . import host_function
from .direct import marked
from .scalar import LARGEST_FLOAT32, rounded_to_float32

try:
    # False where a size is known only when the code runs.
    from torch.fx.experimental.symbolic_shapes import guard_or_false
except ImportError:  # before PyTorch 2.8

    def guard_or_false(condition: Any) -> Any:
        return condition


name = "PyTorch"
exact_float32 = True
float32, float64 = torch.float32, torch.float64
exp, log, log1p, sin, isnan, where = torch.exp, torch.log, torch.log1p, torch.sin, torch.isnan, torch.where
total, mean, length, squeeze = torch.sum, torch.mean, len, torch.squeeze
from_host = torch.from_numpy

_this = sys.modules[__name__]


def sum(x: Any, axes: Any) -> Any:
    if not axes:
        return x
    if torch.compiler.is_compiling() and x.dtype == torch.float32 and x.device.type == "cpu":
        # Inductor's float32 sums are 5e-6 off over 100,000 terms; eager ones and those on GPUs are not.
        return torch.sum(x, axes, keepdim=True, dtype=torch.float64).to(torch.float32)
    return torch.sum(x, axes, keepdim=True)


def max(x: Any, axes: Any) -> Any:
    return torch.amax(x, axes, keepdim=True) if axes else x


def min(x: Any, axes: Any) -> Any:
    return torch.amin(x, axes, keepdim=True) if axes else x


def expand(x: Any, axes: Any) -> Any:
    for axis in sorted(axes):
        x = x.unsqueeze(axis)
    return x


def broadcast(arrays: Any) -> Any:
    return torch.broadcast_tensors(*arrays)


def rows_like(v: Any, x: Any, axes: Any) -> Any:
    return v.expand([1 if i in axes else n for i, n in enumerate(x.shape)])


def astype(x: Any, dtype: Any) -> Any:
    # Not x.to(dtype) alone: PyTorch 2.11 compiles an output that is such a no-op to one without a gradient.
    return x if x.dtype == dtype else x.to(dtype)


def why_not_dense(x: Any) -> str | None:
    """Which kind of tensor this is, and how to make it dense; None if it is dense."""
    if x.is_nested:
        return "a nested tensor: pass torch.nested.to_padded_tensor(...) of it, and weights of 0 for the padding"
    if x.is_quantized:
        return "quantised: pass .dequantize() of it"
    return None if x.layout is torch.strided else f"sparse ({x.layout}): pass .to_dense() of it"


def asarray(x: Any, like: Any) -> Any:
    if isinstance(x, torch.Tensor):
        why = why_not_dense(x)
        if why is not None:
            raise TypeError(f"it is {why}")
        return x
    if like is None:
        return torch.as_tensor(x)
    if like.dtype.is_floating_point and isinstance(x, (int, float, list, tuple)):
        # At once: on the way 0.9 would be rounded to the default dtype, float32.
        return torch.as_tensor(x, dtype=like.dtype, device=like.device)
    made = torch.as_tensor(x, device=like.device)
    if made.dtype == float32 and not hasattr(x, "dtype"):
        return torch.as_tensor(x, dtype=widest(like), device=like.device)  # as whole numbers beside it become
    return made.to(like.dtype) if like.dtype.is_floating_point and not made.is_complex() else made


def default_float(x: Any) -> Any:
    return widest(x)


def is_float(x: Any) -> bool:
    return x.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def is_half(x: Any) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)


def is_integer(x: Any) -> bool:
    return not (x.dtype.is_floating_point or x.dtype.is_complex)


def widest(x: Any) -> Any:
    return torch.float32 if x.device.type == "mps" else torch.float64


def stop_gradient(x: Any) -> Any:
    return x.detach()


def barrier(x: Any) -> Any:
    return x


def high(x: Any) -> Any:
    if torch.jit.is_tracing():  # which cannot record a change of dtype
        scaled = x.detach() * (4097.0 if x.dtype == torch.float32 else 134217729.0)
        return scaled - (scaled - x.detach())
    # A mask, not that multiplication (Veltkamp's): it breaks when a compiler contracts it to an fma.
    if x.dtype == torch.float32:
        return (x.detach().resolve_neg().view(torch.int32) & -4096).view(torch.float32)
    return (x.detach().resolve_neg().view(torch.int64) & -134217728).view(torch.float64)


def can_look(x: Any) -> bool:
    """False under torch.compile, export, vmap and other transforms, fake and meta tensors, and tracing subclasses."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or type(x) not in (torch.Tensor, torch.nn.Parameter)
        or x.device.type == "meta"
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def has_symbolic_sizes() -> bool:
    """Comparing them would tie what torch.compile makes to the sizes of today."""
    return bool(torch.compiler.is_compiling())


def is_capturing() -> bool:
    """A look at the GPU's memory would abort the capture of a CUDA graph."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def may_look(x: Any) -> bool:
    return can_look(x) and x.device.type == "cpu"


_is_lazy_clone = getattr(torch._C, "_is_cow_tensor", lambda x: False)


def _shares_memory(x: Any) -> bool:
    """Was x made by `torch._lazy_clone`? A NumPy view of it, which could be written to, would make PyTorch copy it."""
    try:
        return bool(_is_lazy_clone(x))
    except NotImplementedError:  # the wrappers of torch.func have no memory of their own
        return False


def to_numpy(x: Any) -> Any:
    x = x.detach().cpu().resolve_neg()
    x = x.clone() if _shares_memory(x) else x
    return x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()


def host_view(x: Any) -> Any:
    if not may_look(x) or x.layout is not torch.strided or x.is_conj() or x.is_neg() or _shares_memory(x):
        return None
    return to_numpy(x)


def constant_view(x: Any) -> Any:
    return host_view(x) if is_constant(x) else None


def from_view(x: Any, like: Any) -> Any:
    return torch.from_numpy(x)


def floats(arrays: Any) -> Any:
    """Python floats of tensors without axes, if they may be looked at, their common dtype, and whether a derivative is wanted; or None."""
    if torch.compiler.is_compiling():
        return None
    dtype, wanted = float32, False
    for x in arrays:
        if (type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter) or x.ndim > 0 or not x.is_cpu:
            return None
        if x.requires_grad:
            wanted = True
        if x.dtype is float64:
            dtype = float64
        elif x.dtype is not float32:
            return None
    # As `can_look`, less what was asked above: this is most of what one call costs.
    inside = torch._C._functorch.peek_interpreter_stack() is not None or torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
    if inside or torch.autograd.forward_ad._current_level >= 0:
        return None
    return [x.item() for x in arrays], dtype, wanted and torch.is_grad_enabled()


def from_float(x: float, dtype: Any) -> Any:
    # torch.scalar_tensor raises an error for numbers beyond float32, which Tensor.to rounds to inf.
    return torch.scalar_tensor(x if x <= LARGEST_FLOAT32 or dtype is float64 else rounded_to_float32(x), dtype=dtype)


class _Number(torch.autograd.Function):  # type: ignore[misc]
    """A number whose derivatives are numbers too, worked out when asked for; derivatives of derivatives come from the framework."""

    @staticmethod
    def forward(ctx: Any, value: Any, dtype: Any, slopes: Any, again: Any, *arrays: Any) -> Any:
        ctx.slopes, ctx.again = slopes, again
        ctx.save_for_backward(*arrays)
        return from_float(value, dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        arrays, needs = ctx.saved_tensors, ctx.needs_input_grad[4:]
        slopes = None if torch.is_grad_enabled() else ctx.slopes()
        if slopes is not None:
            found = [astype(upstream * slope, x.dtype) if need else None for slope, x, need in zip(slopes, arrays, needs)]
            return (None, None, None, None, *found)
        with torch.enable_grad():
            value = ctx.again(arrays)
        chosen = [x for x, need in zip(arrays, needs) if need]
        given = iter(torch.autograd.grad(value, chosen, upstream, create_graph=torch.is_grad_enabled(), allow_unused=True))
        return (None, None, None, None, *(next(given) if need else None for need in needs))


def from_float_with_slopes(x: float, dtype: Any, slopes: Any, again: Any, arrays: Any) -> Any:
    """slopes() -> derivatives to the arrays, or None; again(arrays) -> the same, by the framework."""
    return _Number.apply(x, dtype, slopes, again, *arrays)


stack, matmul, concatenate = torch.stack, torch.matmul, torch.cat
double = None


def sums_before(x: Any) -> Any:
    return torch.nn.functional.pad(torch.cumsum(x, -1), (1, 0))[..., :-1]


def gauss_newton(function: Any, parameters: Any, vector: Any, metric: Any, damping: float) -> Any:
    y, change = torch.func.jvp(function, (parameters,), (vector,))
    _, pull = torch.func.vjp(function, parameters)
    (product,) = pull(astype(metric(y, change), y.dtype))
    return torch.utils._pytree.tree_map(lambda x, v: x + damping * v, product, vector)


def diagonal(x: Any) -> Any:
    return torch.diagonal(x, dim1=-2, dim2=-1)


def solve_lower(matrix: Any, x: Any) -> Any:
    # Transposed: rows are columns then, as the solver wants them, and nothing is copied.
    return torch.linalg.solve_triangular(matrix.transpose(-1, -2), x.transpose(-1, -2), upper=True, left=False).transpose(-1, -2)


def transpose(x: Any) -> Any:
    return x.transpose(-1, -2)


def cholesky(x: Any) -> Any:
    return torch.linalg.cholesky(x)


def is_constant(x: Any) -> bool:
    return not (x.requires_grad and torch.is_grad_enabled()) and torch.autograd.forward_ad._current_level < 0


# Elements from which calling the kernel from compiled code costs less than Inductor's loops save.
_CALL_FROM = 1 << 16


@torch.library.custom_op("kullback::on_host", mutates_args=())  # type: ignore[untyped-decorator]
def _on_host(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, draft: torch.Tensor | None,
    kind: str, parameter: float, forms: str, axes: list[int], tolerances: list[float], wide: bool,
) -> torch.Tensor:  # fmt: skip
    arrays = [x, y] if z is None else [x, y, z]
    fields = (kind, parameter, tuple(forms.split()), tuple(axes), tuple(tolerances), wide)
    value: torch.Tensor = host_function[0](_this, fields, draft, *arrays)
    return value


@_on_host.register_fake  # type: ignore[untyped-decorator]
def _(x: Any, y: Any, z: Any, draft: Any, kind: Any, parameter: Any, forms: Any, axes: Any, tolerances: Any, wide: Any) -> Any:
    shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
    return x.new_empty(shape, dtype=float64 if float64 in (x.dtype, y.dtype) else float32)


@_on_host.register_vmap  # type: ignore[untyped-decorator]
def _(info: Any, dims: Any, x: Any, y: Any, z: Any, draft: Any, *rest: Any) -> Any:
    kind, parameter, forms, axes, tolerances, wide = rest
    moved = [
        array if array is None else array.expand(info.batch_size, *array.shape) if dim is None else array.movedim(dim, 0)
        for array, dim in zip((x, y, z, draft), dims)
    ]
    return _on_host(*moved, kind, parameter, forms, [axis + 1 for axis in axes], tolerances, wide), 0


def divides(n: int, size: Any) -> bool:
    return bool(guard_or_false(size % n == 0))


_is_exporting = getattr(torch.compiler, "is_exporting", lambda: True)  # before PyTorch 2.7 there is no telling


def call_host(spec: Any, draft: Any, x: Any, y: Any, z: Any = None) -> Any:
    # Not for export: what is exported must run without this library.
    if not torch.compiler.is_compiling() or _is_exporting() or x.device.type != "cpu" or not guard_or_false(x.numel() >= _CALL_FROM):
        return None
    return _on_host(
        x,
        y,
        z,
        draft(_this, spec, x, y, z),
        spec.kind,
        spec.parameter,
        " ".join(spec.forms),
        list(spec.axes),
        list(spec.tolerances),
        spec.wide,
    )


_ROW_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_TRITON = importlib.util.find_spec("triton") is not None
# Triton's interpreter, for tests without a GPU: kernels then run on CPU tensors.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _has_their_instructions(device: Any) -> bool:
    # NVIDIA's before 8.0 (Ampere) lack some; AMD's are numbered otherwise, and run Triton's own.
    return torch.version.cuda is None or torch.cuda.get_device_capability(device) >= (8, 0)


def has_row_kernels(*arrays: Any) -> bool:
    # After TensorFlow, importing Triton ends the process: each brings its own LLVM.
    loadable = _TRITON and ("triton" in sys.modules or "tensorflow" not in sys.modules)
    return loadable and all(
        x is None
        or (
            can_look(x) and (_INTERPRETED or (x.is_cuda and _has_their_instructions(x.device))) and x.dtype in _ROW_DTYPES and x.numel() > 0
        )
        for x in arrays
    )


class _Op(torch.autograd.Function):  # type: ignore[misc]
    # What torch.compile takes: without `jvp`, and without *args in `forward`.
    generate_vmap_rule = True

    @staticmethod
    def forward(evaluate: Any, gradients: Any, spec: Any, x: Any, y: Any, z: Any) -> Any:
        return evaluate(_this, spec, *(array for array in (x, y, z) if array is not None))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.gradients, ctx.spec, x, y, z = inputs
        ctx.dtype = output.dtype
        ctx.save_for_backward(x, y, z)
        ctx.save_for_forward(x, y, z)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        arrays = [array for array in ctx.saved_tensors if array is not None]
        slopes = ctx.gradients(_this, ctx.spec, *arrays, needs=tuple(ctx.needs_input_grad[3:]))
        found = [
            astype(astype(upstream, slope.dtype) * slope, array.dtype) if need else None
            for slope, array, need in zip(slopes, arrays, ctx.needs_input_grad[3:])
        ]
        return (None, None, None, *found, *(None,) * (3 - len(found)))


class _OpWithForwardMode(_Op):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        slopes = ctx.gradients(_this, ctx.spec, *(array for array in ctx.saved_tensors if array is not None))
        change = None
        for slope, tangent in zip(slopes, tangents[3:]):
            if tangent is not None:
                part = sum(slope * tangent, ctx.spec.axes)
                change = part if change is None else change + part
        return None if change is None else change.to(ctx.dtype)


def _forward_modes() -> int:
    """How many levels of torch.func.jvp surround this call."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        return 0
    levels = torch._functorch.pyfunctorch.retrieve_all_functorch_interpreters()
    return [level.key() for level in levels].count(torch._C._functorch.TransformType.Jvp)


def apply(evaluate: Any, gradients: Any, spec: Any, x: Any, y: Any = None, z: Any = None) -> Any:
    if torch.compiler.is_compiling():
        return _Op.apply(evaluate, gradients, spec, x, y, z)
    if _forward_modes() > 1:
        # PyTorch gives 0 for any custom function there.
        raise NotImplementedError(
            "forward mode inside forward mode (jvp of jvp, jacfwd of jacfwd) is not right in PyTorch: use torch.func.hessian"
        )
    return _OpWithForwardMode.apply(evaluate, gradients, spec, x, y, z)


def pad_last(x: Any, count: int, value: float) -> Any:
    return torch.nn.functional.pad(x, (0, count), value=value)


def take_last(x: Any, at: Any) -> Any:
    return torch.gather(x, -1, at)


def put_last(x: Any, at: Any, value: Any) -> Any:
    return x.scatter(-1, at, value)


def join_last(x: Any, y: Any) -> Any:
    return torch.cat((x, y), -1)


def indices(x: Any, like: Any) -> Any:
    made = torch.as_tensor(x, device=like.device)
    if made.dtype == float32 and not hasattr(x, "dtype"):
        return torch.as_tensor(x, dtype=widest(like), device=like.device)  # as whole numbers beside it become
    return made if made.dtype.is_floating_point or made.dtype in (torch.bool, torch.int64) else made.to(torch.int64)


class NotWeights(ValueError):
    """Why a file cannot be read as weights; follows its name."""


def load_weights(path: str) -> dict[str, tuple[Any, bool]]:
    """The tensors in a file as NumPy arrays on its memory, by name; True where the numbers are bits of bfloat16. Runs nothing in it."""
    import pickle
    import warnings
    import zipfile

    if not zipfile.is_zipfile(path):
        raise NotWeights("is no .pt file of PyTorch 1.6 or later, or is cut short")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd bytes: the error is enough
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        raise NotWeights("holds more than tensors; what it would run was not run: save a tensor, or a dict of tensors") from None
    except (OSError, MemoryError):
        raise
    except Exception:  # the bytes may be any, and PyTorch raises IndexError, AssertionError and others over them
        raise NotWeights("is damaged, cut short or a TorchScript program: save a tensor, or a dict of tensors") from None
    named = loaded if isinstance(loaded, dict) else {"": loaded}
    found = {}
    for name, tensor in named.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            raise NotWeights(f"holds a {type(tensor).__name__} ({name!r}), which is no dense tensor: save a tensor, or a dict of tensors")
        half = tensor.dtype == torch.bfloat16
        try:
            plain = tensor.detach().resolve_neg().contiguous()
            numbers = plain.view(torch.int16).numpy().view("uint16") if half else plain.numpy()
        except TypeError:  # NumPy has no such type: quantised tensors, numbers of 8 bits and fewer
            raise NotWeights(f"holds dtype {tensor.dtype}: use float16, bfloat16, float32, float64 or an integer type") from None
        found[str(name)] = (numbers, half)
    return found


direct_ops = marked(globals())
