"""Rows of logits of which each rank of a process group holds some columns: collectives, the autograd function, DTensor in and out.

What is exchanged is a few numbers a row, in forward only. The formulas come from the caller, or from `parallel_triton`; nothing here knows
what a divergence is.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist


class Ranks:
    """One process group, or several whose product the columns are spread over."""

    def __init__(self, group: Any) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError("group is given, and torch.distributed is not initialised: call torch.distributed.init_process_group first")
        given = group if isinstance(group, tuple) else (group,)
        self.groups = tuple(one.get_group() if hasattr(one, "get_group") and getattr(one, "ndim", 0) == 1 else one for one in given)
        for one in self.groups:
            if not isinstance(one, dist.ProcessGroup):
                raise TypeError(
                    f"group is {one!r}: it must be a process group that this rank belongs to, or a device mesh of one dimension"
                )

    def largest(self, x: Any) -> Any:
        for group in self.groups:
            dist.all_reduce(x, dist.ReduceOp.MAX, group)
        return x

    def total(self, x: Any) -> Any:
        for group in self.groups:
            dist.all_reduce(x, dist.ReduceOp.SUM, group)
        return x

    def each(self, number: int, device: Any) -> tuple[list[int], int]:
        """A number of every rank, in their order, and which is this one. The host waits for it."""
        if len(self.groups) != 1:
            raise ValueError("group is several groups, whose ranks have no order: pass one")
        own = dist.get_rank(self.groups[0])
        found = torch.zeros(dist.get_world_size(self.groups[0]), dtype=torch.int64, device=device)
        found[own] = number
        return self.total(found).tolist(), own

    def most_and_least(self, number: int, device: Any) -> tuple[int, int]:
        """Of a number of each rank. The host waits for it."""
        most, minus_least = self.largest(torch.tensor([number, -number], device=device)).tolist()
        return most, -minus_least

    def must_agree(self, what: str) -> None:
        """Raise on every rank if `what` differs between them: their collectives would not fit, and wait for each other for ever."""
        mark = zlib.crc32(what.encode())
        most, least = self.most_and_least(mark, "cpu")
        if most != least:
            raise ValueError(f"ranks of the group were called differently; this one with {what}")


class Local(NamedTuple):
    """What a rank does alone. statistics(x, y, scale, ranks) → the value of each row, and the tensors that
    slopes(x, y, scale, saved, upstream, needs) takes to give upstream · d value / d x, d y and d scale."""

    statistics: Callable[..., tuple[Any, tuple[Any, ...]]]
    slopes: Callable[..., tuple[Any, Any, Any]]


def _only_first_derivatives() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError("create_graph=True: rows that are spread over ranks have no second derivatives")


class Rows(torch.autograd.Function):  # type: ignore[misc]
    """The divergence of each row, the same on every rank; derivatives to this rank's columns, and to a scale of the logits that is the
    same on every rank, the upstream being so too."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, scale: Any, local: Local, ranks: Ranks) -> Any:
        value, saved = local.statistics(x, y, scale, ranks)
        ctx.has_scales, ctx.local = torch.is_tensor(scale), local
        ctx.scale = None if ctx.has_scales else scale
        ctx.save_for_backward(x, y, *((scale,) if ctx.has_scales else ()), *saved)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        _only_first_derivatives()
        x, y, *saved = ctx.saved_tensors
        scale = saved.pop(0) if ctx.has_scales else ctx.scale
        return (*ctx.local.slopes(x, y, scale, saved, upstream, ctx.needs_input_grad[:3]), None, None)


class Chosen(torch.autograd.Function):  # type: ignore[misc]
    """Of rows that are spread over ranks, the logits at k places, and with `rest` one for all others together: [..., k (+ 1)], the same on
    every rank. `at` counts in this rank's columns; their number stands for places that another rank has."""

    @staticmethod
    def forward(ctx: Any, x: Any, at: Any, rest: bool, ranks: Ranks) -> Any:
        columns = x.shape[-1]
        padded = _with_nothing(x)
        # Sums, to which one rank adds: a maximum might lose a NaN.
        found = torch.where(at == columns, 0.0, padded.gather(-1, at))
        if not rest:
            ctx.save_for_backward(at)
            ctx.shape = padded.shape
            return ranks.total(found)
        others = padded.scatter(-1, at, -torch.inf)
        top = ranks.largest(others.amax(-1, keepdim=True))
        top = torch.where(top == -torch.inf, 0.0, top)
        found = ranks.total(torch.cat([found, torch.exp(others - top).sum(-1, keepdim=True)], -1))
        power = top + torch.log(found[..., -1:])
        ctx.save_for_backward(at, x, power)
        return torch.cat([found[..., :-1], power], -1)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        _only_first_derivatives()
        at, *rest = ctx.saved_tensors
        if not rest:
            found = torch.zeros(ctx.shape, dtype=upstream.dtype, device=upstream.device)
        else:
            x, power = rest
            slope, upstream = upstream[..., -1:], upstream[..., :-1]
            x = _with_nothing(x)
            # A row that nothing is wanted of may hold anything; what the chosen get here is overwritten.
            found = torch.where((slope == 0) | (x == -torch.inf), 0.0, slope * torch.exp(x - power))
        return found.scatter(-1, at, upstream)[..., :-1], None, None, None


def _with_nothing(x: Any) -> Any:
    """A column of nothing behind the others."""
    return torch.nn.functional.pad(x, (0, 1), value=-torch.inf)


class Layout(NamedTuple):
    """How DTensors of logits lie: the mesh, the groups the categories are spread over (none: every rank has whole rows), the placements of
    one value a row, the shape of those, and where this rank's columns begin."""

    mesh: Any
    groups: tuple[Any, ...]
    placements: tuple[Any, ...]
    batch: tuple[int, ...]
    start: int


def layout(student: Any, teacher: Any) -> Layout:
    from torch.distributed.tensor import DTensor, Partial, Replicate
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    for name, x in (("student", student), ("teacher", teacher)):
        if not isinstance(x, DTensor):
            raise TypeError(
                f"{name} is a {type(x).__name__} and the other a DTensor: distribute both alike, or pass both to_local() with group="
            )
    if student.device_mesh != teacher.device_mesh or student.placements != teacher.placements:
        raise ValueError(
            f"student lies as {student.placements} on {student.device_mesh}, "
            f"teacher as {teacher.placements} on {teacher.device_mesh}: redistribute one of them"
        )
    if student.shape[:-1] != teacher.shape[:-1]:
        raise ValueError(f"student has shape {tuple(student.shape)} and teacher {tuple(teacher.shape)}: batches must be equal for DTensors")
    mesh, last = student.device_mesh, student.ndim - 1
    groups, placements = [], []
    for dimension, placement in enumerate(student.placements):
        if placement.is_shard() and placement.dim % student.ndim == last:
            groups.append(mesh.get_group(dimension))
            placements.append(Replicate())
        elif placement.is_shard() or placement.is_replicate():
            placements.append(placement)
        else:
            what = (
                "sums not yet taken: redistribute to Replicate() or Shard(-1)"
                if isinstance(placement, Partial)
                else "a placement unknown here"
            )
            raise ValueError(f"logits lie as {student.placements}: {placement} is {what}")
    if groups and student.shape != teacher.shape:
        raise ValueError(
            f"student has {student.shape[-1]} categories and teacher {teacher.shape[-1]}, spread over ranks: the slices of a rank "
            "would not be of the same categories; pad the shorter one with -inf first"
        )
    _, offset = compute_local_shape_and_global_offset(student.shape, mesh, student.placements)
    return Layout(mesh, tuple(groups), tuple(placements), tuple(student.shape[:-1]), offset[-1])


def local_number(x: Any, where: Layout) -> Any:
    """A number that is the same on every rank, for use beside this rank's rows: what comes back to it is added up over all rows."""
    from torch.distributed.tensor import Partial, Replicate

    parts = [Partial() if placement.is_shard() else Replicate() for placement in where.placements]
    return replicated(x, where).to_local(grad_placements=parts)


def distributed(values: Any, where: Layout) -> Any:
    """One value a row, of the rows this rank has, as a DTensor."""
    from torch.distributed.tensor import DTensor

    strides = torch.empty(where.batch, device="meta").stride()
    return DTensor.from_local(values, where.mesh, where.placements, run_check=False, shape=torch.Size(where.batch), stride=strides)


def replicated(x: Any, where: Layout) -> Any:
    """x, the same on every rank, as a DTensor; a DTensor with what it holds on every rank."""
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * where.mesh.ndim
    if isinstance(x, DTensor):
        return x.redistribute(placements=everywhere)
    return DTensor.from_local(torch.as_tensor(x, device=where.mesh.device_type), where.mesh, everywhere, run_check=False)
