"""The compiled kernel of comparisons, `comparison.c`: what it decides must be right, and nearly all that is sound decided."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

import kullback
from dumps import softmax, truth
from kernel_builds import LEVELS, SOURCE, built
from kullback._kernels import comparison, compiled
from kullback._kernels.comparison import compare_rows

# What it promises of a row it decides.
GOAL = 1e-5


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """As if there were more rows: few would be taken in float64."""
    monkeypatch.setattr(comparison, "SMALL", 0)


def taken(x, y, form, kernel=None, tolerance=2e-3, chosen=None):
    """By the kernel alone."""
    rows = np.zeros(len(x), compiled.ROW)
    limit = tolerance if form in ("probs", "log_probs") else np.inf
    (kernel or compiled.kernels.compare)(x, y, form in ("logits", "log_probs"), (limit, limit), chosen, rows)
    return rows, rows["decided"] == 1


def figures(rows):
    return rows["kl_pq"], rows["kl_qp"], rows["js"]


def pairs(rng, form, dtype, categories, spread, shift, count=48):
    """Rows at noise from 1e-6 to 5, some with a category that one side all but excludes, some with one that both do.

    Sums of probabilities are off by up to 1e-3. Returns the arrays, and the normalised distributions in extended precision."""
    a = spread * rng.standard_normal((count, categories))
    b = a + 10 ** rng.uniform(-6, 0.7, (count, 1)) * rng.standard_normal(a.shape)
    if categories > 2:
        b[::5, 0], a[::5, 0] = a[::5, 0] + 8.0, a[::5, 0] - 12.0
    if categories > 7:
        a[::7, 3] = b[::7, 3] = -np.inf
    if form == "logits":
        x, y = (a + shift / 3).astype(dtype), (b + shift).astype(dtype)
        return x, y, softmax(x), softmax(y)
    x, y = ((softmax(side) * rng.uniform(0.999, 1.001, (count, 1))).astype(dtype) for side in (a, b))
    wide = [side.astype(np.longdouble) for side in (x, y)]
    return x, y, *(side / side.sum(1, keepdims=True) for side in wide)


def test_it_is_installed():
    assert compiled.kernels is not None
    assert SOURCE.exists()
    assert not list(Path(kullback.__file__).parent.rglob("*.[ch]"))  # of no use there


@pytest.mark.parametrize("dtypes", [("f4", "f4"), ("f8", "f8"), ("f2", "f2"), ("f4", "f8"), ("f2", "f4")])
@pytest.mark.parametrize("form", ["logits", "probs"])
def test_what_it_decides_is_right_and_that_is_nearly_all(rng, form, dtypes):
    decided = meant = 0
    for categories in (1, 2, 3, 15, 16, 17, 50, 255, 256, 257, 3000):
        for spread, shift in ((0.5, 0.0), (2.0, 0.0), (2.0, 3.0), (8.0, 30.0)):
            if form == "probs" and "f2" in dtypes:
                spread = min(spread, 0.5)  # float16 has no probabilities below 6e-8
            x, y, p, q = pairs(rng, form, np.float64, categories, spread, shift)
            x, y = x.astype(dtypes[0]), y.astype(dtypes[1])
            wide = [side.astype(np.longdouble) for side in (x, y)]
            p, q = (softmax(side) if form == "logits" else side / side.sum(1, keepdims=True) for side in wide)
            (rows, fine), expected = taken(x, y, form, tolerance=5e-2), truth(p, q)
            for values, right in zip(figures(rows), expected):
                # The truth, summed in extended precision, is itself off by 1e-18 or so.
                np.testing.assert_allclose(values[fine], right[fine], rtol=GOAL, atol=1e-17)
            np.testing.assert_array_equal(rows["top_p"], x.argmax(1))
            np.testing.assert_array_equal(rows["top_q"], y.argmax(1))
            for values, side in ((rows["log_p"], p), (rows["log_q"], q)):
                with np.errstate(divide="ignore"):
                    logs = np.log(side[np.arange(len(x)), x.argmax(1)]).astype(float)
                # Weights are e^w with w of float32, down to -40 where Q's are large.
                np.testing.assert_allclose(values[fine], logs[fine], atol=40 * 2.0**-24)
            # Sums of float32 probabilities that are off by 1e-3 cost small divergences their digits; so does float16 its own.
            wanted = expected[0] > (1e-9 if form == "logits" or dtypes == ("f8", "f8") else 1e-7)
            wanted &= np.isfinite(expected[0] + expected[1])
            decided, meant = decided + np.count_nonzero(fine & wanted), meant + np.count_nonzero(wanted)
    assert meant > 700
    assert decided >= 0.98 * meant


def exact_kl(p, q):
    return mpmath.fsum(s * mpmath.log(s / t) for s, t in zip(p, q))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", ["logits", "probs"])
def test_two_categories_at_every_distance(form, dtype):
    """The logarithms and exponentials within, one ratio at a time: log(q/p) of the second category up to 60, and of the first to match."""
    ratios = np.concatenate([s * np.geomspace(1e-7, 60.0, 400) for s in (1, -1)])
    x = np.tile([0.0, -3.0], (len(ratios), 1))
    y = x + np.stack([np.zeros(len(ratios)), ratios], 1)
    if form == "probs":
        x, y = (softmax(side).astype(float) for side in (x, y))
    x, y = x.astype(dtype), y.astype(dtype)
    rows, fine = taken(x, y, form)
    with mpmath.workdps(40):
        for i in range(0, len(ratios), 3):
            sides = []
            for side in (x, y):
                weights = [mpmath.mpf(float(v)) if form == "probs" else mpmath.exp(mpmath.mpf(float(v))) for v in side[i]]
                sides.append([w / mpmath.fsum(weights) for w in weights])
            if 0 in sides[0] + sides[1]:
                assert not fine[i]
                continue
            p, q = sides
            m = [(s + t) / 2 for s, t in zip(p, q)]
            right = exact_kl(p, q), exact_kl(q, p), (exact_kl(p, m) + exact_kl(q, m)) / 2
            assert fine[i] or min(right) < 1e-13
            if fine[i]:
                for value, expected in zip(figures(rows), right):
                    assert float(value[i]) == pytest.approx(float(expected), rel=2e-6)  # of one term, not of a sum


@pytest.mark.compiler
@pytest.mark.parametrize("level", LEVELS)
def test_every_generation_of_processors(tmp_path, rng, level):
    """The library chooses among them when it is loaded; here each is compiled by itself."""
    kernel = built(level).compare
    for form in ("logits", "probs"):
        for dtype in (np.float32, np.float64):
            for categories in (7, 1000):
                x, y, p, q = pairs(rng, form, dtype, categories, 2.0, 3.0)
                rows, fine = taken(x, y, form, kernel)
                assert fine[truth(p, q)[0] > 1e-7].all()
                for values, right in zip(figures(rows), truth(p, q)):
                    np.testing.assert_allclose(values[fine], right[fine], rtol=GOAL, atol=1e-17)


def test_sums_of_many_like_terms(rng):
    """Rounding errors of which none cancels another: a few values, again and again."""
    for form, shift in (("logits", 0.0), ("logits", 3.0), ("logits", -12.0), ("probs", 0.0)):
        for period in (1, 2, 3, 16, 64):
            a = rng.standard_normal((40, period))
            b = a + 10 ** rng.uniform(-3, 0.3, (40, 1)) * rng.standard_normal(a.shape) + shift
            if form == "probs":
                a, b = (softmax(side).astype(float) * period / 96_000 for side in (a, b))
            a, b = a.astype(np.float32), b.astype(np.float32)
            rows, fine = taken(np.tile(a, 96_000 // period), np.tile(b, 96_000 // period), form)
            assert fine.all() or (period == 1 and form == "logits")  # rows of one value are all the same distribution
            wide = [side.astype(np.longdouble) for side in (a, b)]
            sides = [softmax(side) if form == "logits" else side / side.sum(1, keepdims=True) for side in wide]
            for values, right in zip(figures(rows), truth(*sides)):
                np.testing.assert_allclose(values[fine], right[fine], rtol=GOAL, atol=1e-17)


def test_where_q_has_weight_that_p_all_but_lacks(rng):
    """Weights of P that float32 has only in part, or not at all, and large ones of Q beside them."""
    x = np.minimum(rng.standard_normal((120, 700)) - 20.0, -15.8)
    x[:, 1] = -15.5
    y = x + 2.0 * rng.standard_normal(x.shape)
    x[:, 7], y[:, 7] = np.linspace(-116.0, -40.0, 120), -15.5
    x, y = x.astype(np.float32), y.astype(np.float32)
    expected = truth(softmax(x), softmax(y))
    rows, fine = taken(x, y, "logits")
    assert fine.any()
    assert not fine.all()
    for values, right in zip(figures(rows), expected):
        np.testing.assert_allclose(values[fine], right[fine], rtol=GOAL)
    found = compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3))
    assert found.decided.all()
    for values, right in zip(found[:3], expected):
        np.testing.assert_allclose(values, right, rtol=GOAL)


@pytest.mark.parametrize("mask", [-1e4, -1e9, -1e30, -3.4e38, -np.inf])
@pytest.mark.parametrize("depth", [5.0, 80.0, 95.0, 300.0, 1e5, np.inf])
def test_masks(rng, mask, depth):
    """Of Q where P has something, little, or next to nothing: p times the mask is in KL(P‖Q), if it is not 0 in float64."""
    x = rng.standard_normal((6, 300))
    y = x + 0.3 * rng.standard_normal(x.shape)
    x[:, 3], y[:, 3] = -depth, mask
    x, y = x.astype(np.float32), y.astype(np.float32)
    rows, fine = taken(x, y, "logits")
    p, q = softmax(x), softmax(y)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # Some underflow even in extended precision; their logarithms do not.
        log_p, log_q = (z - np.log(np.exp(z).sum(1, keepdims=True)) for z in (side.astype(np.longdouble) for side in (x, y)))
        kl_pq = np.where(p > 0, p * (log_p - log_q), 0).sum(1).astype(float)
        kl_qp = np.where(q > 0, q * (log_q - log_p), 0).sum(1).astype(float)
        right = kl_pq, kl_qp, truth(p, q)[2]
    for values, expected in zip(figures(rows), right):
        np.testing.assert_allclose(values[fine], expected[fine], rtol=GOAL)
    if 1e5 <= depth < np.inf and mask > -1e30:
        assert fine.all()


@pytest.mark.parametrize("level", [-1e17, -1e30, np.finfo(np.float64).min, 1e12])
def test_float64_that_has_no_digits_left_of_a_difference(rng, level):
    """A row at one level, and one that is not: the difference is the level, and what is taken off it."""
    y = np.round(64.0 * rng.standard_normal((6, 100))) / 64.0
    x = np.full(y.shape, level) if level < 0 else level + y
    z = y + (1e-5 * rng.standard_normal(y.shape) if level > 0 else 0.0)
    for a, b in ((x, z), (z, x)):
        rows, fine = taken(a, b, "logits")
        for values, right in zip(figures(rows), truth(softmax(a), softmax(b))):
            np.testing.assert_allclose(values[fine], right[fine], rtol=GOAL)
        assert not fine.any()


@pytest.mark.parametrize("total", [1e-36, 1e-33, 1e-30, 1e-25, 1e-3, 1e10, 1e30])
@pytest.mark.parametrize("noise", [1e-3, 0.3])
def test_float32_counts_of_any_size(rng, total, noise):
    x = rng.dirichlet(np.ones(300), 20)
    y = x * np.exp(noise * rng.standard_normal(x.shape))
    y[10:] /= y[10:].sum(1, keepdims=True)  # as if they were probabilities, but for their size
    x, y = (total * x).astype(np.float32), (total * y).astype(np.float32)
    rows, fine = taken(x, y, "counts")
    wide = [side.astype(np.longdouble) for side in (x, y)]
    for values, right in zip(figures(rows), truth(*(side / side.sum(1, keepdims=True) for side in wide))):
        np.testing.assert_allclose(values[fine], right[fine], rtol=GOAL)
    assert fine.all() or total < 1e-30  # of subnormal numbers


@pytest.mark.parametrize("tiny", [2e-45, 1e-44, 1e-42, 1e-38, 1e-35, 8.7e-35, 1e-30, 1e-15, 1e-9])
def test_probabilities_that_are_next_to_nothing_on_one_side(tiny):
    """Close rows, but for one category: of P a little and of Q next to nothing, and the other way round; a large part, too."""
    wave = 1e-5 * np.sin(np.arange(1000))
    for share in (1e-9, 1e-4, 0.4):
        p = np.full((2, 1000), (1.0 - share) / 999)
        q = p * (1.0 + wave)
        p[0, 7], q[0, 7], p[1, 7], q[1, 7] = share, tiny, tiny, share
        for dtype in (np.float32, np.float64):
            x, y = p.astype(dtype), q.astype(dtype)
            rows, fine = taken(x, y, "counts")
            wide = [side.astype(np.longdouble) for side in (x, y)]
            for values, right in zip(figures(rows), truth(*(side / side.sum(1, keepdims=True) for side in wide))):
                np.testing.assert_allclose(values[fine], right[fine], rtol=GOAL)
            assert fine.all() or tiny < 1e-13 or dtype == np.float32
            # So much of Q, so steep, would cost JS its digits.
            assert not (share == 0.4 and tiny <= 1e-15 and fine[1])


def test_tokens_that_are_nearly_sure(rng):
    """-log p is the sum of the others, of which float32 has nothing beside 1; and it is never above 0."""
    for categories in (3, 300, 3000):
        x = rng.standard_normal((60, categories))
        x[:, 1] = np.linspace(10.0, 40.0, 60)
        y = x + 0.1 * rng.standard_normal(x.shape)
        for dtype in (np.float32, np.float64):
            a, b = x.astype(dtype), y.astype(dtype)
            rows, _ = taken(a, b, "logits")
            for name, side in (("log_p", a), ("log_q", b)):
                wide = side.astype(np.longdouble)
                others = np.exp(np.delete(wide, 1, 1) - wide[:, 1:2]).sum(1)
                np.testing.assert_allclose(rows[name], -np.log1p(others).astype(float), rtol=5e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_of_steep_ratios(dtype):
    """Above e^30 JS would lose digits."""
    steep, share = np.linspace(20.0, 75.0, 56), -1.0
    x = np.stack([np.zeros(56), share - steep], 1).astype(dtype)
    y = np.stack([np.zeros(56), np.full(56, share)], 1).astype(dtype)
    rows, fine = taken(x, y, "logits")
    for values, right in zip(figures(rows), truth(softmax(x), softmax(y))):
        np.testing.assert_allclose(values[fine], right[fine], rtol=GOAL)
    assert fine[steep < 29.0].all()
    assert not fine[steep > 32.0].any()


def test_rows_that_differ_by_less_than_float32_has():
    """A divergence that underflows is not that of equal rows."""
    x = np.array([[0.0, 0.0], [0.0, -90.0], [1.0, 2.0]], np.float32)
    y = np.array([[1e-30, -1e-30], [0.0, -81.0], [1.0, 2.0]], np.float32)
    assert list(taken(x, y, "logits")[1]) == [False, False, True]


class TestRefused:
    """What the kernel must leave to others."""

    def test_no_distributions(self, rng):
        p, q = (softmax(side).astype(np.float32) for side in rng.standard_normal((2, 8, 20)))
        p[0, 3], q[1, 3], p[2, 3], q[2, 3] = -0.01, -0.01, -0.01, -0.012  # the last two have a ratio above 0
        p[3, 3], q[4, 3] = np.nan, np.nan
        p[5, 3], q[5, 3], q[6, 3] = 1e-40, -1e-40, -1e-36
        assert list(taken(p, q, "probs", tolerance=0.1)[1]) == [False] * 7 + [True]
        assert list(taken(p.astype(float), q.astype(float), "probs", tolerance=0.1)[1]) == [False] * 7 + [True]

    def test_sums(self, rng):
        p, q = (softmax(side) for side in rng.standard_normal((2, 6, 20)))
        q[1:] *= np.array([0.999, 1.0015, 0.9985, 1.2, 0.0])[:, None]
        for dtype in (np.float32, np.float64):
            x, y = p.astype(dtype), q.astype(dtype)
            assert list(taken(x, y, "probs", tolerance=1.2e-3)[1]) == [True, True, False, False, False, False]
            assert list(taken(y, x, "probs", tolerance=1.2e-3)[1]) == [True, True, False, False, False, False]
            assert list(taken(x, y, "counts")[1]) == [True, True, True, True, True, False]
            with np.errstate(divide="ignore"):
                a, b = np.log(p).astype(dtype), np.log(q).astype(dtype)
            assert list(taken(a, b, "log_probs", tolerance=1.2e-3)[1]) == [True, True, False, False, False, False]
            assert list(taken(a, b, "logits")[1]) == [True, True, True, True, True, False]

    def test_what_is_infinite(self, rng):
        x, y = rng.standard_normal((2, 6, 20)).astype(np.float32)
        x[0, 3], y[1, 3], x[2, 3], y[3] = -np.inf, -np.inf, np.inf, -np.inf
        x[4] = y[4] = -np.inf
        for dtype in (np.float32, np.float64):
            assert list(taken(x.astype(dtype), y.astype(dtype), "logits")[1]) == [False] * 5 + [True]
        with np.errstate(invalid="ignore"):
            p, q = (softmax(side).astype(np.float32) for side in (x, y))
        for dtype in (np.float32, np.float64):
            assert not taken(p.astype(dtype), q.astype(dtype), "probs")[1][:5].any()

    def test_nan(self, rng):
        for form in ("logits", "probs"):
            for where in (0, 3, 19):
                x, y = rng.standard_normal((2, 3, 20))
                if form == "probs":
                    x, y = softmax(x), softmax(y)
                x[0, where] = y[1, where] = np.nan
                for dtype in (np.float16, np.float32, np.float64):
                    for sign in (1.0, -1.0):
                        fine = taken((sign * x if form == "logits" else x).astype(dtype), y.astype(dtype), form, tolerance=5e-2)[1]
                        assert list(fine) == [False, False, True]

    def test_a_ratio_that_has_lost_digits(self):
        """q/p = 3e-45 is the second smallest number of float32; the true one, 3.9e-45, is a third more."""
        q = np.array([[3.5e-45, 0.5, 0.5]], np.float32)
        p = np.array([[0.9, 0.05, 0.05]], np.float32)
        assert not taken(p, q, "probs")[1][0]
        found = compare_rows(p, q, ("probs", "probs"), (1e-3, 1e-3))
        a, b = ([mpmath.mpf(float(v)) for v in side[0]] for side in (p, q))
        right = sum(s / sum(a) * mpmath.log((s / sum(a)) / (t / sum(b))) for s, t in zip(a, b))
        assert found.kl_pq[0] == pytest.approx(float(right), rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_equal_rows_are_at_no_distance(rng, dtype):
    for form in ("logits", "probs"):
        x = rng.standard_normal((5, 400))
        x = (x if form == "logits" else softmax(x)).astype(dtype)
        x[2, x[2].argmin()] = 0.0 if form == "probs" else -np.inf
        rows, fine = taken(x, x, form, tolerance=5e-2)
        assert fine.all()
        assert not any(values.any() for values in figures(rows))


@pytest.mark.parametrize("row", [[1.2, -0.2], [1.2, -0.2, 0.0]])
def test_equal_rows_that_are_no_distribution_are_not_decided(row):
    x = np.array([row] * 40, np.float32)
    assert not compare_rows(x, x, ("probs", "probs"), (1e-3, 1e-3)).decided.any()


def test_the_first_of_equals_is_the_likeliest(rng):
    for columns in (1, 5, 16, 40, 256, 700):
        for dtype in (np.float16, np.float32, np.float64):
            x = rng.integers(-3, 3, (60, columns)).astype(dtype)
            x[x == 0] *= rng.choice([-1.0, 1.0], np.count_nonzero(x == 0)).astype(dtype)
            y = -x[:, ::-1].copy()
            rows, _ = taken(x, y, "logits")
            np.testing.assert_array_equal(rows["top_p"], x.argmax(1))
            np.testing.assert_array_equal(rows["top_q"], y.argmax(1))


def test_float16_as_numpy_reads_it():
    """Every one of them, as the likeliest category's logit less another's: log p has it."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    x = np.stack([every, np.zeros_like(every)], 1)
    rows, _ = taken(x, x, "logits", chosen=np.zeros(len(x), np.int64))
    deep = x[:, 0].astype(float) < -1e4  # e^x underflows in extended precision too
    np.testing.assert_allclose(rows["log_p"][~deep], np.log(softmax(x[~deep])[:, 0]).astype(float), atol=2e-7)
    np.testing.assert_array_equal(rows["log_p"][deep], x[deep, 0].astype(float))


def test_bfloat16(rng):
    """Bits that NumPy has no type for; alone, and beside others."""
    x = 2.0 * rng.standard_normal((50, 700)).astype(np.float32)
    y = x + np.float32(0.3) * rng.standard_normal(x.shape).astype(np.float32)
    x[3, 5], y[4, 6], x[5, 7] = np.nan, np.nan, -np.inf
    x, y = (side.view(np.uint32) & np.uint32(0xFFFF0000) for side in (x, y))
    bits = [(side >> 16).astype(np.uint16).view(compiled.BFLOAT16) for side in (x, y)]
    wide = [side.view(np.float32) for side in (x, y)]
    for a, b in (bits, (bits[0], wide[1]), (wide[0].astype(np.float64), bits[1])):
        rows, fine = taken(a, b, "logits")
        assert list(np.flatnonzero(~fine)) == [3, 4, 5]
        for values, right in zip(figures(rows), truth(*map(softmax, wide))):
            np.testing.assert_allclose(values[fine], right[fine], rtol=GOAL)
    for values, right in zip(
        comparison.compare_rows(*bits, ("logits", "logits"), (1e-3, 1e-3)),
        comparison.compare_rows(*wide, ("logits", "logits"), (1e-3, 1e-3)),
    ):
        np.testing.assert_array_equal(values, right)


def test_float16_where_subnormal_numbers_are_flushed(rng):
    """As PyTorch may be told to, for the whole thread: those of float16 are none of float32."""
    p = rng.dirichlet(np.ones(300), 20)
    p[:, 100:] *= 1e-3
    q = p * np.exp(0.5 * rng.standard_normal(p.shape))
    x, y = (side.astype(np.float16) for side in (p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)))
    assert (np.abs(x) < np.finfo(np.float16).smallest_normal).mean() > 0.5
    before, _ = taken(x, y, "counts")
    assert torch.set_flush_denormal(True)
    try:
        flushed, _ = taken(x, y, "counts")
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(flushed["kl_pq"], before["kl_pq"])


def test_every_number_of_float16():
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)][:, None]
    rows, _ = taken(
        np.concatenate([x, np.zeros_like(x)], 1), np.zeros((len(x), 2), np.float16), "logits", chosen=np.zeros(len(x), np.int64)
    )
    wide = x[:, 0].astype(np.longdouble)
    np.testing.assert_allclose(rows["log_p"], (wide - np.logaddexp(wide, 0)).astype(float), rtol=1e-6, atol=1e-7)


def test_the_chosen_category(rng):
    x, y = rng.standard_normal((2, 30, 500)).astype(np.float32)
    chosen = rng.integers(500, size=30)
    rows, _ = taken(x, y, "logits", chosen=chosen)
    for name, side in (("log_p", x), ("log_q", y)):
        np.testing.assert_allclose(rows[name], np.log(softmax(side))[np.arange(30), chosen].astype(float), atol=1e-6)


def test_arrays_that_are_not_as_the_kernel_has_them(rng):
    """Other strides, another alignment: copied, and so the same."""
    x, y = rng.standard_normal((2, 50, 300)).astype(np.float32)
    expected = compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3))
    room = np.zeros(x.nbytes + 1, np.uint8)
    odd = room[1:].view(np.float32).reshape(x.shape)
    odd[:] = x
    assert not odd.flags.aligned
    for other in (np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], x[::-1].copy()[::-1], odd):
        for one, right in zip(compare_rows(other, y, ("logits", "logits"), (1e-3, 1e-3)), expected):
            np.testing.assert_array_equal(one, right)


def test_how_rows_are_shared_out_does_not_matter(rng, monkeypatch):
    x = rng.standard_normal((70, 300)).astype(np.float32)
    y = x + np.float32(0.02) * rng.standard_normal(x.shape).astype(np.float32)
    whole = compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3))
    monkeypatch.setattr(comparison, "_TASK", 10 * 300)
    for one, other in zip(whole, compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3))):
        np.testing.assert_array_equal(one, other)


def test_a_library_of_another_system_is_as_none(tmp_path, monkeypatch):
    (tmp_path / "_comparison.so").write_bytes(b"not for this machine")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert compiled._installed() is None
    # Nor one that is not ours, or of another version: what Python hands over would be read as something else.
    ours = "int kullback_compare, kullback_compare_clipped;"
    for source in ("int other;", ours, f"{ours} long long kullback_sizes[] = {{64, 64, 96, 80}};"):
        (tmp_path / "other.c").write_text(source)
        (tmp_path / "_comparison.so").unlink()
        subprocess.run([shutil.which("cc"), "-shared", "-fPIC", "other.c", "-o", "_comparison.so"], check=True, cwd=tmp_path)
        assert compiled._installed() is None


def test_a_category_that_is_none_is_not_read(rng):
    x = rng.standard_normal((4, 30)).astype(np.float32)
    for wrong in (-1, 30, 10**7):
        with pytest.raises(IndexError, match="none of 30"):
            compare_rows(x, x, ("logits", "logits"), (1e-3, 1e-3), np.array([0, 1, wrong, 2]))
