"""The blocked CPU kernel: every lane against mpmath, every layout, memory that does not grow, threads and forks, short vectors."""

from __future__ import annotations

import multiprocessing
import os
import threading
import tracemalloc
from functools import cache

import ml_dtypes
import numpy as np
import pytest

import kullback as kb
import oracle
from kullback._kernels import cpu, cpu_tiles, small
from oracle import VALUE_BOUND

# 100,000 categories, many tiles, are 500 different ones, each 200 times: the oracle needs 500 evaluations, not 100,000.
COPIES = {2: 1, 3: 1, 10: 1, 300: 1, 100_000: 200}
# Root mean square differences of the logits, KL about half their square: from 1e-14, and densely around the switch of float32 to float64
# (KL 0.02 without an offset) and of e^a e^v to two sums of exponentials (differences of 10).
STEPS = (2e-7, 1e-5, 1e-3, 0.03, 0.1, 0.18, 0.2, 0.22, 0.3, 1.0, 2.5, 4.0, 10.0, 40.0)
SHIFTS = ((0, 0), (0, 0), (100, 0), (0, -100), (-100, 100), (3000, 0))


@pytest.fixture(autouse=True)
def tiled(monkeypatch):
    """Small arrays would take the general formula, which other tests are about."""
    monkeypatch.setattr(cpu, "TINY", 0)


def _collect(pairs, dtype, form, copies):
    """Pairs of rows whose true KL is at least 1e-14, each entry repeated, and those values."""
    xs, ys, truths = [], [], []
    for pair in pairs:
        x, y = (np.asarray(z).astype(dtype) for z in pair)
        truth = oracle.kl(x, y, form, copies=copies).value
        if truth >= 1e-14:
            xs.append(np.tile(x, copies))
            ys.append(np.tile(y, copies))
            truths.append(truth)
    assert len(truths) > len(STEPS) // 2
    return np.stack(xs), np.stack(ys), np.array(truths)


def _perturbed(rng, a, step):
    """Three ways to be different: everywhere a little, in one category, by one of two amounts (whose roundings do not average out)."""
    yield a + step * rng.normal(size=a.size)
    b = a.copy()
    b[rng.integers(a.size)] += step
    yield b
    yield a + step * rng.integers(0, 2, a.size)


@cache
def logits(size, dtype):
    rng = np.random.default_rng((size, np.dtype(dtype).itemsize))
    copies = COPIES[size]

    def pairs():
        for i, step in enumerate(STEPS):
            a = rng.normal(size=size // copies) * (0.0, 1.0, 4.0)[i % 3]
            for b in _perturbed(rng, a, step):
                shift = SHIFTS[rng.integers(len(SHIFTS))]
                yield a + shift[0], b + shift[1]
        # One large logit and equal others, whose distances to it all round alike.
        a = np.full(size // copies, 0.1234567)
        a[0] = 7.3
        for step in STEPS:
            yield a, np.where(np.arange(a.size) % 2, a, a + step)
            yield np.where(np.arange(a.size) % 2, a, a + step), a

    return _collect(pairs(), dtype, "logits", copies)


@cache
def probs(size, dtype):
    """Off in their sums by up to 1e-3, sometimes with zeros in P, or in both."""
    rng = np.random.default_rng((size, np.dtype(dtype).itemsize))
    copies = COPIES[size]

    def pairs():
        for i, step in enumerate(STEPS):
            a = rng.normal(size=size // copies) * (0.0, 1.0, 3.0)[i % 3]
            for b in _perturbed(rng, a, min(step, 20.0)):
                p, q = np.exp(a), np.exp(b)
                if size > 2 and rng.integers(3) == 0:
                    p[0] = 0.0
                    q[0] *= rng.integers(2)
                off = 1.0 + rng.choice([0.0, 0.0, 9e-4, -9e-4])
                yield p / p.sum() / copies, q / q.sum() / copies * off

    # Rounding of tiny probabilities to 0 in Q would make the truth infinite, which is another test.
    return _collect(((p, q) for p, q in pairs() if np.all(q.astype(dtype)[p > 0] > 0)), dtype, "probs", copies)


CASES = {"logits": logits, "probs": probs}


def assert_close(found, truth, bound):
    error = np.abs(found.astype(np.float64) - truth) / truth
    worst = int(error.argmax())
    assert np.all(found >= 0)
    assert error[worst] <= bound, f"row {worst}: {found[worst]!r}, truth {truth[worst]!r}, relative error {error[worst]:.1e}"


@pytest.mark.parametrize("size", COPIES)
@pytest.mark.parametrize("form", CASES)
def test_exact(form, size, dtype):
    x, y, truth = CASES[form](size, dtype)
    # The truth is good to float64's rounding; a float32 result cannot be closer than 6e-8.
    assert_close(kb.kl(x, y, form=form), truth, VALUE_BOUND[dtype])
    # Alone, a row cannot lean on what its neighbours made the kernel choose.
    alone = np.stack([kb.kl(a[None], b[None], form=form)[0] for a, b in zip(x, y)])
    assert_close(alone, truth, VALUE_BOUND[dtype])


@pytest.mark.parametrize("form", CASES)
def test_what_a_lane_accepts_is_exact(form, dtype):
    """Each lane by itself, on rows of one tile: it may reject, not be wrong; and each accepts something."""
    lanes = (cpu_tiles.PROB_LANES if form == "probs" else cpu_tiles.LOG_LANES)[np.dtype(dtype)]
    merge = cpu_tiles.merge_probs if form == "probs" else cpu_tiles.merge_logs
    accepted = np.zeros(len(lanes), int)
    for size in (2, 3, 10):
        x, y, truth = CASES[form](size, dtype)
        spec = kb._pairs.Spec("kl", 0.0, (form, form), (1,), (1e-3, 1e-3), False)
        for i, lane in enumerate(lanes):
            with np.errstate(all="ignore"):
                sums = lane.sums(x.astype(lane.dtype), y.astype(lane.dtype), None, cpu._Buffers())
                _, *done = lane.finish(lane, 1.0, *(s[:, None] for s in sums))
                value = merge(spec, *done)
            fine = ~np.isnan(value)
            accepted[i] += fine.sum()
            if fine.any():
                assert_close(value[fine], truth[fine], VALUE_BOUND[dtype])
    assert np.all(accepted > 5), accepted


def test_float32_is_used_where_it_will_do(rng, monkeypatch):
    """The first lane alone must be enough for a KL of 0.5: else the speed is gone, and no other test would notice."""
    a = rng.normal(size=(4, 70_000)).astype(np.float32)
    b = rng.normal(size=(4, 70_000)).astype(np.float32)
    p, q = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (a, b))
    truth = kb.kl(a, b, form="logits"), kb.kl(p, q)
    only = {np.dtype(np.float32): cpu_tiles.LOG_LANES[np.dtype(np.float32)][:1]}
    monkeypatch.setattr(cpu, "LOG_LANES", only)
    monkeypatch.setattr(cpu, "PROB_LANES", {np.dtype(np.float32): cpu_tiles.PROB_LANES[np.dtype(np.float32)][:1]})
    monkeypatch.setattr(cpu._Call, "general", lambda *_: pytest.fail("the general formula ran"))
    np.testing.assert_array_equal(kb.kl(a, b, form="logits"), truth[0])
    np.testing.assert_array_equal(kb.kl(p, q), truth[1])


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_temperature(temperature, dtype):
    x, y, _ = logits(10, dtype)
    truth = np.array([oracle.kl(a, b, "logits", temperature).value for a, b in zip(x, y)])
    keep = truth >= 1e-14
    assert_close(kb.kl(x, y, form="logits", temperature=temperature)[keep], truth[keep], VALUE_BOUND[dtype])


@pytest.mark.parametrize("size", [3, 300, 5000])
def test_absent_categories(size, dtype, rng):
    """-inf in both, -inf in P alone, additive masks; tiles that are nothing but -inf; inf where only Q is absent."""
    for mask_a, mask_b in ((-np.inf, -np.inf), (-np.inf, None), (-1e9, -1e9), (-1e9, -np.inf), (-np.inf, -1e9), (None, -np.inf)):
        for step in (1e-5, 0.3, 6.0):
            a = rng.normal(size=size).astype(dtype)
            b = (a + step * rng.normal(size=size)).astype(dtype)
            masked = np.arange(size) % 7 == 1 if size < 5000 else np.arange(size) < 4100
            for z, mask in ((a, mask_a), (b, mask_b)):
                if mask is not None:
                    z[masked] = mask
            found = kb.kl(a, b, form="logits")
            if mask_b == -np.inf and mask_a != -np.inf:
                assert found == np.inf
                continue
            keep = ~masked if mask_a == mask_b else slice(None)
            truth = oracle.kl(a[keep], b[keep], "logits").value if size < 5000 else None
            if truth is None:
                # Too many for mpmath: extended precision, whose rounding (5e-20) is far below what is compared.
                wide = [z[keep].astype(np.longdouble) for z in (a, b)]
                lp, lq = (z - z.max() - np.log(np.exp(z - z.max()).sum()) for z in wide)
                here = lp > -np.inf
                l = (lq - lp)[here]
                lost = np.exp(lq[~here]).sum()
                truth = float((np.exp(lp[here]) * (np.expm1(l) - l)).sum() + lost)
            assert_close(np.array([found]), np.array([truth]), VALUE_BOUND[dtype])


def test_zeros_nan_and_invalid_rows(dtype):
    good, nan = [0.5, 0.25, 0.25], [0.5, np.nan, 0.25]
    rows = [
        (good, good, 0.0), (good, [0.5, 0.5, 0.0], np.inf), ([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], np.log(2)),
        (nan, good, np.nan), (good, nan, np.nan), (nan, [1.0, 0.0, 0.0], np.nan),
    ]  # fmt: skip
    p, q, expected = (np.array(column) for column in zip(*rows))
    # 6e-8 is float32's rounding of log 2.
    np.testing.assert_allclose(kb.kl(p.astype(dtype), q.astype(dtype)), expected, rtol=6e-8)
    for bad in ([0.5, 0.5, 0.1], [1.5, -0.5, 0.0], [-0.25, 1.0, 0.25], [0.0, 0.0, 0.0], [np.inf, 0.5, 0.5]):
        for pair in ((bad, good), (good, bad)):
            x, y = (np.array([good, z, good], dtype) for z in pair)
            with pytest.raises(ValueError, match="row 1"):
                kb.kl(x, y)
    # Zeros elsewhere make the kernel mask: a negative q beside p = 0 must not slip through.
    with pytest.raises(ValueError, match="row 0"):
        kb.kl(np.array([[0.0, 0.5, 0.5]], dtype), np.array([[-0.25, 0.75, 0.5]], dtype))


def test_quotients_below_the_normal_range(rng):
    """KL close to the largest that float32 probabilities can express: q/p is subnormal, with few digits left."""
    for _ in range(20):
        q = np.array([2.0**-126 * rng.uniform(1e-4, 1.0), 1e-40 * rng.uniform(0.1, 1.0), 1.0], np.float32)
        p = np.array([0.75, 0.25, 1e-40], np.float32)
        assert_close(kb.kl(p[None], q[None]), np.array([oracle.kl(p, q).value]), 5e-6)


def test_invalid_logs(dtype):
    inf = np.inf
    good = np.log([0.5, 0.25, 0.25])
    for form in ("logits", "log_probs"):
        for bad in ([inf, 0.0, 0.0], [-inf, -inf, -inf]):
            for pair in ((bad, good), (good, bad)):
                x, y = (np.array([good, z, good], dtype) for z in pair)
                with pytest.raises(ValueError, match="row 1"):
                    kb.kl(x, y, form=form)
    for which in (0, 1):
        pair = [np.array([good, good], dtype), np.array([good, good], dtype)]
        pair[which][1] += 0.01
        assert kb.kl(*pair, form="logits")[1] < 1e-15
        with pytest.raises(ValueError, match=r"row 1 has exponentials that sum to 1\.01"):
            kb.kl(*pair, form="log_probs")
        assert kb.kl(*pair, form="log_probs", check=False)[1] < 1e-15
    assert np.isnan(kb.kl(np.array([[np.nan, 0.0]], dtype), np.array([[0.0, -inf]], dtype), form="logits")[0])


KINDS = {
    "kl": (kb.kl, oracle.kl),
    "js": (kb.js, oracle.js),
    "jeffreys": (kb.jeffreys, oracle.jeffreys),
    "renyi": (lambda p, q, **k: kb.renyi(p, q, order=0.7, **k), lambda p, q, form: oracle.renyi(p, q, 0.7, form)),
}


@pytest.mark.parametrize("form", ["probs", "logits", "counts"])
@pytest.mark.parametrize("kind", KINDS)
def test_layouts(kind, form, dtype, rng):
    """Any strides, axes and broadcasting, more rows than fit a block: each entry is that row's own value."""
    function, reference = KINDS[kind]
    shape = (3, 5, 4, 2)
    x, y = (rng.normal(size=shape).astype(dtype) for _ in "xy")
    if form != "logits":
        x, y = (np.exp(z) for z in (x, y))
    layouts = {
        "plain": (x, y),
        "fortran": (np.asfortranarray(x), y),
        "reversed": (x[::-1, :, ::-1], y[::-1, :, ::-1]),
        "strided": (np.repeat(x, 2, 1)[:, ::2], np.repeat(y, 3, 3)[..., ::3]),
        "unaligned": (np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(dtype).reshape(shape), y),
        "rows broadcast": (np.broadcast_to(x[:1, :, :1], shape), y),
        "categories broadcast": (x, np.broadcast_to(y[..., :1], shape)),
    }
    for name, (a, b) in layouts.items():
        for axis in ((3,), (1,), (0, 2), (3, 1), (0, 1, 2, 3)):
            if form == "probs":
                a, b = (z / z.sum(axis, keepdims=True) for z in (a, b))
            found = function(a, b, form=form, axis=axis)
            batch = [i for i in range(4) if i not in axis]
            rows = [z.transpose(*batch, *sorted(axis)).reshape(*(shape[i] for i in batch), -1) for z in (a, b)]
            assert found.shape == rows[0].shape[:-1], name
            for index in list(np.ndindex(found.shape))[::7]:
                truth = reference(rows[0][index], rows[1][index], form)
                truth = getattr(truth, "value", truth)
                assert found[index] == pytest.approx(truth, rel=VALUE_BOUND[dtype], abs=0), (name, axis, index)


def test_transposed_rows_in_many_blocks(rng):
    """Blocks along both axes, gathered across memory: the same bits as from a contiguous copy, up to the order of summation."""
    a, b = (rng.normal(size=(3000, 150)).astype(np.float32) for _ in "ab")
    np.testing.assert_allclose(kb.kl(a, b, form="logits", axis=0), kb.kl(a.T.copy(), b.T.copy(), form="logits"), rtol=1e-6)
    stacked = np.stack([a, b])[:, ::2]  # batch axes that no single stride walks through
    found = kb.kl(stacked, stacked[::-1], form="logits")
    np.testing.assert_allclose(found[0], kb.kl(a[::2], b[::2], form="logits"), rtol=1e-6)
    np.testing.assert_allclose(found[1], kb.kl(b[::2], a[::2], form="logits"), rtol=1e-6)


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision(half, rng):
    a = rng.normal(size=(4, 200)).astype(half)
    b = (a.astype(np.float32) + 0.02 * rng.normal(size=a.shape)).astype(half)
    for x, y in ((a, b), (a, b.astype(np.float32)), (a.astype(np.float32), b)):
        found = kb.kl(x, y, form="logits")
        assert found.dtype == np.float32
        assert_close(found, np.array([oracle.kl(p, q, "logits").value for p, q in zip(x, y)]), 5e-6)
    assert kb.kl(a, b.astype(np.float64), form="logits").dtype == np.float64


def _peak(function, *arrays):
    function(*arrays)  # buffers that live on, such as the thread pool's, are not the call's own
    tracemalloc.start()
    try:
        function(*arrays)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("axis", [-1, 0], ids=["along memory", "across memory"])
@pytest.mark.parametrize("kind", ["kl logits", "kl probs", "kl close", "kl mixed", "js", "half"])
def test_memory_does_not_grow_with_rows(kind, axis, rng, monkeypatch):
    monkeypatch.setattr(cpu, "thread_count", lambda: 1)  # how many of them work at the same time is left to chance
    form = {"kl logits": "logits", "kl close": "logits", "half": "logits", "kl mixed": ("probs", "log_probs")}.get(kind, "probs")
    # Buffers a sixteenth of the real ones, so that these arrays fill them.
    monkeypatch.setattr(cpu, "TILE", cpu.TILE // 16)
    monkeypatch.setattr(cpu, "_TASK", cpu._TASK // 16)
    columns = 500
    a, b = (rng.normal(size=(4000, columns)).astype(np.float16 if kind == "half" else np.float32) for _ in "ab")
    if kind == "kl close":
        b = (a + 1e-4 * b).astype(np.float32)
    if "logits" not in form:
        a, b = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (a, b))
    if kind == "kl mixed":
        b = np.log(b)
    if axis == 0:
        a, b = a.T.copy(), b.T.copy()
    function = kb.js if kind == "js" else kb.kl
    few, many = (
        _peak(lambda x, y: function(x, y, form=form, axis=axis), *(z[:n] if axis else z[:, :n] for z in (a, b))) for n in (1000, 4000)
    )
    # More rows add the result, of 4 bytes each (and what tracemalloc itself notes of more steps).
    assert many < 1.02 * few + 50 * 3000, (few, many)


def test_threads(rng, monkeypatch):
    """Large calls use the pool, small ones do not; the result does not depend on it; an error in a thread reaches the caller."""
    a, b = (rng.normal(size=(600, 1000)).astype(np.float32) for _ in "ab")
    seen = set()
    first_lane = cpu_tiles.LOG_LANES[np.dtype(np.float32)][0].sums
    barrier = threading.Barrier(2, timeout=20)

    def watch(*arguments):
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            if threads == 2:
                barrier.wait()  # neither thread may take all the work
        return first_lane(*arguments)

    lanes = cpu_tiles.LOG_LANES[np.dtype(np.float32)]
    monkeypatch.setattr(cpu, "LOG_LANES", {np.dtype(np.float32): (lanes[0]._replace(sums=watch), *lanes[1:])})
    monkeypatch.setattr(cpu, "_pool", None)
    monkeypatch.setattr(cpu, "thread_count", lambda: threads)
    results = []
    for threads in (1, 2):
        seen.clear()
        results.append(kb.kl(a, b, form="logits"))
        assert len(seen) == threads
    np.testing.assert_array_equal(*results)
    seen.clear()
    threads = 1
    kb.kl(a[:10], b[:10], form="logits")
    assert seen == {threading.get_ident()}

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(cpu, "LOG_LANES", {np.dtype(np.float32): (lanes[0]._replace(sums=fail),)})
    threads = 2
    with pytest.raises(MemoryError):
        kb.kl(a, b, form="logits")


@pytest.mark.parametrize(("asked", "expected"), [("1", 1), ("1,4", 1), ("", None), ("many", None), ("100000", None)])
def test_thread_count_follows_the_environment(asked, expected, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    available = len(os.sched_getaffinity(0))
    assert cpu.thread_count() == (available if expected is None else expected)


def _in_child(a, b, queue):
    queue.put(kb.kl(a, b, form="logits").sum())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_fork(rng, monkeypatch):
    """A child made after the pool was used has no threads in it: it must make its own, not wait for ever."""
    monkeypatch.setattr(cpu, "thread_count", lambda: 2)
    monkeypatch.setattr(cpu, "_pool", None)
    a, b = (rng.normal(size=(600, 1000)).astype(np.float32) for _ in "ab")
    expected = kb.kl(a, b, form="logits").sum()
    assert cpu._pool is not None
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(a, b, queue))
    child.start()
    try:
        assert queue.get(timeout=20) == expected
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("size", [2, 3, 10])
@pytest.mark.parametrize("form", CASES)
def test_short_vectors(form, size, dtype, monkeypatch):
    """The lane for one short pair: exact where it answers, and it does answer for ordinary input."""
    x, y, truth = CASES[form](size, dtype)
    found = [small.small_kl(a, b, form) for a, b in zip(x, y)]
    answered = np.array([f is not None for f in found])
    assert answered[truth > 0.1].mean() > 0.5
    assert all(type(f) is dtype for f in found if f is not None)
    assert_close(np.array([f for f in found if f is not None]), truth[answered], VALUE_BOUND[dtype])
    assert_close(np.array([kb.kl(a, b, form=form) for a, b in zip(x, y)]), truth, VALUE_BOUND[dtype])


@pytest.mark.parametrize("tiny", [0, 4096])
def test_short_vectors_keep_the_contract(dtype, tiny, monkeypatch):
    monkeypatch.setattr(cpu, "TINY", tiny)
    good = np.array([0.5, 0.25, 0.25], dtype)
    assert kb.kl(good, np.array([0.5, 0.5, 0.0], dtype)) == np.inf
    assert kb.kl(good, good) == 0.0
    assert np.isnan(kb.kl(good, np.array([np.nan, 0.5, 0.5], dtype)))
    for bad in ([0.5, 0.5, 0.1], [1.5, -0.5, 0.0], [0.0, 0.0, 0.0]):
        with pytest.raises(ValueError, match=r"^q "):
            kb.kl(good, np.array(bad, dtype))
        with pytest.raises(ValueError, match=r"^p "):
            kb.kl(np.array(bad, dtype), good)
    with pytest.raises(ValueError, match="categories"):
        kb.kl(good, good[:2])
    logits_ = np.log(good)
    assert kb.kl(logits_, np.array([0.0, 1.0, -np.inf], dtype), form="logits") == np.inf
    with pytest.raises(ValueError, match="inf"):
        kb.kl(logits_, np.array([np.inf, 0.0, 0.0], dtype), form="logits")
