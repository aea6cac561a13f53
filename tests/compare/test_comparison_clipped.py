"""Rows of llama.cpp's files, compiled and not: by the definition in docs/compare.md, in extended precision, from the codes."""

from __future__ import annotations

import numpy as np
import pytest

from dumps import softmax, truth
from kernel_builds import LEVELS, built
from kullback._compare import clipped
from kullback._compare.clipped import Plain, compare_clipped
from kullback._compare.llama import Clipped
from kullback._kernels import compiled

PROMISE = 1e-5


@pytest.fixture(params=["compiled", "numpy"])
def kernel(request, monkeypatch):
    """As installed, and on a machine without a compiler."""
    if request.param == "numpy":
        monkeypatch.setattr(compiled, "kernels", None)
    else:
        assert compiled.kernels is not None
    return request.param


def coded(logits, window):
    """As llama.cpp's writer does it; window None: one so large that nothing is clipped, but the codes are as coarse as they are."""
    x = logits.astype(np.float32)
    top = x.max(1, keepdims=True)
    low = x.min(1, keepdims=True) if window is None else np.maximum(x.min(1, keepdims=True), top - np.float32(window))
    scale = ((top - low) / np.float32(65535.0)).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(x > low, np.rint((x - low) / scale), 0).astype(np.uint16)
    lowest = (low - top - np.log(np.exp((x - top).astype(np.float64)).sum(1, keepdims=True))).astype(np.float32)
    return Clipped(codes, scale[:, 0], lowest[:, 0])


def sides_of(side):
    """Logarithms in extended precision, and which categories are hidden."""
    if not isinstance(side, Clipped):
        logs = side.numbers.astype(np.longdouble)
        return logs - np.log(np.exp(logs).sum(1, keepdims=True)), np.zeros(logs.shape, bool)
    logs = side.scale[:, None].astype(np.longdouble) * side.codes + side.low[:, None]
    return logs, (side.codes == 0) & (side.scale * np.float32(65535) >= np.float32(15.9))[:, None]


def by_definition(p, q):
    """Both over the categories that neither hides, and the bucket, whose masses are as near to each other as the codes allow."""
    (log_p, hidden_p), (log_q, hidden_q) = sides_of(p), sides_of(q)
    pooled, sides, intervals = hidden_p | hidden_q, [], []
    for side, logs, own in ((p, log_p, hidden_p), (q, log_q, hidden_q)):
        mass = np.where(own, 0, np.exp(logs))
        known = np.where(pooled, mass, 0).sum(1)
        low = high = np.zeros_like(known)
        if isinstance(side, Clipped):
            rest, slack = 1 - mass.sum(1), side.scale.astype(np.longdouble) / 2
            high = np.minimum(np.maximum(rest + slack, 0), own.sum(1) * np.exp(side.low.astype(np.longdouble)))
            low = np.minimum(np.maximum(rest - slack, 0), high)
        sides.append(np.where(pooled, 0, mass))
        intervals.append((known + low, known + high))
    (low_p, high_p), (low_q, high_q) = intervals
    both = (np.maximum(low_p, low_q) + np.minimum(high_p, high_q)) / 2
    masses = [
        np.where(high_p < low_q, high_p, np.where(high_q < low_p, low_p, both)),
        np.where(high_p < low_q, low_q, np.where(high_q < low_p, high_q, both)),
    ]
    whole = [np.concatenate([side, bucket[:, None]], 1) for side, bucket in zip(sides, masses)]
    with np.errstate(invalid="ignore"):
        theirs = np.where(log_p > -16, np.exp(log_p) * (log_p - log_q), 0).sum(1).astype(float)
    return truth(*(side / side.sum(1, keepdims=True) for side in whole)), [bucket.astype(float) for bucket in masses], theirs, log_p, log_q


def check_masses(buckets, masses, decided):
    """In float64, 1 less a sum that is good to 1e-13, and of 1e-5 or more. By the kernel, sums of float32, where no divergence depends on
    more: 2.5e-6 of what is known, and 6e-7 of what is 1 less the rest, which the codes leave open by 1e-4."""
    for values, right in zip(buckets[:2], masses):
        np.testing.assert_allclose(values[~decided], right[~decided], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(values[decided], right[decided], rtol=2.5e-6, atol=6e-7)


def check(p, q, chosen=None):
    found, buckets = compare_clipped(p, q, chosen)
    expected, masses, theirs, log_p, log_q = by_definition(p, q)
    for values, right in zip(found[:3], expected):
        # The truth, summed in extended precision, is itself off by 1e-18 or so.
        np.testing.assert_allclose(values, right, rtol=PROMISE, atol=1e-17)
    check_masses(buckets, masses, found.decided)
    if isinstance(p, Clipped):
        np.testing.assert_allclose(buckets.theirs, theirs, rtol=1e-9, atol=1e-12)
    else:
        assert buckets.theirs is None
    for top, side in ((found.top_p, p), (found.top_q, q)):
        np.testing.assert_array_equal(top, side[0].argmax(1))
    token = found.top_p if chosen is None else chosen
    for values, logs in ((found.log_p, log_p), (found.log_q, log_q)):
        np.testing.assert_allclose(
            values, logs[np.arange(len(logs)), token].astype(float), rtol=1e-14, atol=1e-12
        )  # of a sum good to 1e-13
    return found


def pair(rng, rows, categories, spread, noise):
    a = spread * rng.standard_normal((rows, categories))
    return a, a + noise * rng.standard_normal(a.shape)


@pytest.mark.parametrize("categories", [1, 2, 15, 16, 17, 255, 256, 257, 3001])
@pytest.mark.parametrize(("spread", "window"), [(1.0, 16.0), (4.0, 16.0), (8.0, 16.0), (8.0, 15.95), (8.0, 24.0), (2.0, None)])
def test_two_files(rng, kernel, categories, spread, window):
    """Rows at every distance; few categories hidden, and most."""
    a, b = pair(rng, 40, categories, spread, 10 ** rng.uniform(-4, 0.5, (40, 1)))
    check(coded(a, window), coded(b, window), rng.integers(categories, size=40))


@pytest.mark.parametrize("spread", [1.0, 8.0])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_file_and_exact_numbers(rng, kernel, spread, first, dtype):
    a, b = pair(rng, 40, 700, spread, 10 ** rng.uniform(-3, 0.5, (40, 1)))
    exact = Plain(b.astype(dtype), "logits", False)
    check(coded(a, 16.0), exact) if first else check(exact, coded(a, 16.0))
    logs = Plain(np.log(softmax(b)).astype(dtype), "log_probs", False)
    check(coded(a, 16.0), logs)


def test_one_is_clipped_and_the_other_not(rng, kernel):
    a, b = pair(rng, 30, 500, 8.0, 0.5)
    check(coded(a, 16.0), coded(b, None))
    check(coded(b, None), coded(a, 16.0))


@pytest.mark.parametrize("many", [True, False])
def test_categories_are_hidden_in_no_order(rng, kernel, many):
    """Few and many, so that the bucket's mass is a part of a step of the codes, or depends on the digits of all that is shown."""
    a, b = pair(rng, 20, 3001, 0.3, 10 ** rng.uniform(-4, 0, (20, 1)))
    looked_at = np.arange(3001) % 47 == 0
    for x in (a, b):
        x[:, ~looked_at if many else looked_at] -= 30.0
        x[:, 1000] = 12.0
    p, q = coded(a, 16.0), coded(b, 16.0)
    hidden = q.codes == 0
    assert hidden[:, looked_at].mean() < 0.1 if many else hidden[:, looked_at].all()
    assert (hidden.mean() > 0.9) == many
    # Is the mass of what is hidden, which is so many times e^low at most, to be known from what is shown?
    assert (hidden.sum(1) * np.exp(q.low) > q.scale).all() if many else (hidden.sum(1) * np.exp(q.low) < q.scale / 4).all()
    for left in (p, Plain(a, "logits", False)):
        found = check(left, q)
        assert kernel == "numpy" or found.decided.all()


@pytest.mark.parametrize("first", [True, False])
def test_a_bucket_that_depends_on_the_last_digits(rng, kernel, first):
    """What P shows leaves next to nothing for the rest, of which Q has much: float32 would not do for the sum of what is shown."""
    a, b = pair(rng, 60, 3001, 1.0, 0.5)
    a[:, 1500:] -= 40.0
    a[:, 1000] = 14.0
    p = coded(a, 16.0)
    logs, hidden = sides_of(p)
    left = 10 ** rng.uniform(-6, -5, 60)
    p.low[:] += np.log((1 + p.scale / 2 - left) / np.where(hidden, 0, np.exp(logs)).sum(1)).astype(np.float32)
    exact = Plain(b, "logits", False)
    found = check(p, exact) if first else check(exact, p)
    assert kernel == "numpy" or found.decided.all()
    _, masses, *_ = by_definition(p, exact)
    assert np.median(masses[0]) < 1e-5
    assert (masses[1] > 0.3).all()


def test_masks_of_what_the_other_side_hides(rng, kernel):
    """-inf, or next to it, as of a vocabulary's unused places. They are the kernel's to decide."""
    a, b = pair(rng, 20, 700, 8.0, 0.4)
    p = coded(a, 16.0)
    for mask in (-np.inf, -1e5):
        masked = b.copy()
        masked[(p.codes == 0) & (rng.random(b.shape) < 0.5)] = mask
        for sides in ((p, Plain(masked, "logits", False)), (Plain(masked, "logits", False), p)):
            found = check(*sides)
            assert kernel == "numpy" or found.decided.all()


@pytest.mark.parametrize("last", [40, 699])
def test_the_first_of_equals_is_the_likeliest(rng, kernel, last):
    a, b = pair(rng, 12, 700, 2.0, 0.4)
    for x in (a, b):
        x[:, [17, last]] = 30.0
    for sides in ((coded(a, 16.0), coded(b, 16.0)), (coded(a, 16.0), Plain(b, "logits", False))):
        found, _ = compare_clipped(*sides, None)
        assert (found.top_p == 17).all()
        assert (found.top_q == 17).all()


@pytest.mark.parametrize("off", [-800.0, np.log(2.0), 800.0, 4096 * np.log(2.0), 1e20, np.inf])
@pytest.mark.parametrize("both", [True, False])
def test_a_row_that_is_off_in_its_file(rng, kernel, off, both):
    """Its probabilities are nothing at all, or too much; by 2^4096, which 12 bits of an exponent do not show; or alike beside infinity."""
    a, b = pair(rng, 8, 300, 8.0, 0.4)
    p, q = coded(a, 16.0), coded(b, 16.0)
    for side in (p, q) if both else (p,):
        side.low[3] += np.float32(off)
    with pytest.raises(ValueError, match="p row 3 "):
        compare_clipped(p, q, None)


def test_a_damaged_scale(kernel):
    """Negative, so that logarithms end at the lowest code: not below -700, where the kernel's exponential is none."""
    p = Clipped(np.array([[0, 57063]], np.uint16), np.array([-0.05], np.float32), np.zeros(1, np.float32))
    q = Clipped(np.array([[65535, 0]], np.uint16), np.array([16 / 65535], np.float32), np.array([-16.0005], np.float32))
    found, buckets = compare_clipped(p, q, None)
    assert np.isinf(found.kl_qp[0])  # what q hides is more than nothing: the rest is 5e-4 less than 1
    assert buckets.p[0] == 0.0


def test_the_likeliest_by_less_than_rounding_leaves(rng, kernel):
    x = np.zeros((1, 9))
    x[0, 3], x[0, 7] = 0.5e-17, 1e-17
    found, _ = compare_clipped(Plain(x, "logits", False), coded(rng.standard_normal((1, 9)), 16.0), None)
    assert found.top_p[0] == 7


def test_nearly_all_is_decided_by_the_kernel(rng, monkeypatch):
    """What it leaves takes NumPy ten times as long."""
    monkeypatch.setattr(clipped, "pool", None)
    a, b = pair(rng, 200, 2000, 5.0, 10 ** rng.uniform(-4, 0.5, (200, 1)))
    found, _ = compare_clipped(coded(a, 16.0), coded(b, 16.0), None)
    assert found.decided.all()


@pytest.mark.parametrize("spread", [1.0, 3.0, 8.0])
def test_the_same_rows(rng, kernel, spread):
    """At no distance, and for the kernel to say so: whoever compares a file with itself should not wait."""
    a, _ = pair(rng, 20, 3001, spread, 0.0)
    found = check(coded(a, 16.0), coded(a, 16.0))
    assert not any(values.any() for values in found[:3])
    assert kernel == "numpy" or found.decided.all()


def test_rows_that_lie_apart_in_memory(rng, kernel):
    """As in the file, where each begins with its scale."""
    a, b = pair(rng, 30, 301, 6.0, 0.4)
    sides = []
    for x in (a, b):
        made = coded(x, 16.0)
        wide = np.zeros((30, 307), "<u2")
        wide[:, 4:305] = made.codes
        sides.append(Clipped(wide[:, 4:305], made.scale, made.low))
    check(*sides)


def test_numbers_that_are_none(rng, kernel):
    """A damaged file: NaN comes out, in that row alone; nothing else happens."""
    a, b = pair(rng, 12, 300, 6.0, 0.4)
    p, q = coded(a, 16.0), coded(b, 16.0)
    p.scale[3], p.low[4], q.low[5] = np.nan, np.nan, np.nan
    found, _ = compare_clipped(p, q, None)
    assert list(np.flatnonzero(np.isnan(found.kl_pq))) == [3, 4, 5]


@pytest.mark.parametrize("some", [True, False])
def test_what_q_lacks_and_p_hides(rng, kernel, some):
    """Q has nothing where P hides something. That is infinitely far if P must have some of it there, and nothing if P may have none: as
    where both mask a part of the vocabulary."""
    a, b = pair(rng, 8, 300, 8.0, 0.4)
    p = coded(a, 16.0)
    hidden = p.codes == 0
    b[hidden] = -np.inf
    if some:
        p.low[:] -= np.float32(5e-4)  # 1 less the rest is more than half a step
    for first in (True, False):
        sides = (p, Plain(b, "logits", False)) if first else (Plain(b, "logits", False), p)
        found, buckets = compare_clipped(*sides, None)
        (here, back), (own, other) = found[:2], buckets[:2]
        here, back, own, other = (here, back, own, other) if first else (back, here, other, own)
        assert hidden.any(1).all()
        assert not other.any()
        assert (own > 0).all() if some else not own.any()
        assert np.isinf(here).all() == some
        assert np.isfinite(back).all()
    if not some:
        check(p, Plain(b, "logits", False))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("below", [8.5, 10.0, 15.0, 16.0, 22.0])
def test_a_tail_that_the_other_side_has_far_below(kernel, below, first):
    """q/p - 1 is nearly -1 there, and has no digits of q; and q decides KL(P||Q)."""
    a = np.full((1, 131073), -17.0)
    a[0, 0] = 0.0
    b = np.where(a < 0, a - below, a)
    exact = Plain(b, "logits", False)
    check(coded(a, 16.0), exact) if first else check(exact, coded(a, 16.0))
    check(coded(a, 16.0), coded(b, 60.0)) if first else check(coded(b, 60.0), coded(a, 16.0))


@pytest.mark.parametrize("apart", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("first", [True, False])
def test_buckets_that_are_nearly_equal(kernel, apart, first):
    """The square of their small difference is all there is: sums of equal numbers in float32, all off to one side, would not do."""
    a = np.full((1, 100001), -16.0)
    a[0, 0] = 0.0
    b = np.where(a < 0, a + apart, a)
    exact = Plain(b, "logits", False)
    check(coded(a, 16.0), exact) if first else check(exact, coded(a, 16.0))


@pytest.mark.parametrize("form", ["probs", "counts", "logits", "log_probs"])
def test_masks_and_what_is_no_distribution(rng, kernel, form):
    """Numbers beside a file: masked by large ones, NaN, a sum that is off; the side and the row are named."""
    a, b = pair(rng, 20, 300, 8.0, 0.4)
    p, q = coded(a, 16.0), b.copy()
    q[np.arange(20), p.codes.argmin(1)] = -1e5  # next to nothing, of what P hides
    x = q if form == "logits" else np.log(softmax(q)).astype(float) if form == "log_probs" else softmax(q).astype(float)
    found, buckets = compare_clipped(p, Plain(x, form, False), None)
    expected, masses, *_ = by_definition(p, Plain(q, "logits", False))
    for values, right in zip(found[:3], expected):
        np.testing.assert_allclose(values, right, rtol=PROMISE)
    check_masses(buckets, masses, found.decided)
    wrong = x.copy()
    wrong[7, 3] = np.nan
    assert list(np.flatnonzero(np.isnan(compare_clipped(p, Plain(wrong, form, False), None)[0].kl_pq))) == [7]
    wrong = x.copy()
    wrong[9] = x[9] * 2 if form == "probs" else -1.0 if form == "counts" else np.inf if form == "logits" else x[9] + 0.1
    for left, right, name in ((p, Plain(wrong, form, False), "q"), (Plain(wrong, form, False), p, "p")):
        with pytest.raises(ValueError, match=rf"^{name} row 9 ") as error:
            compare_clipped(left, right, None)
        assert error.value.complaint.row == (9,)


def test_the_sum_that_is_allowed_beside_a_file(rng, kernel):
    """1e-3 off, above 1 and below."""
    a, b = pair(rng, 2, 300, 2.0, 0.4)
    logs = np.log(softmax(b)).astype(float)
    for off in (1.00099, 0.99901):
        compare_clipped(coded(a, 16.0), Plain(logs + np.log(off), "log_probs", False), None)
    for off in (1.0010004, 0.9989996):
        with pytest.raises(ValueError, match="q row 0 "):
            compare_clipped(coded(a, 16.0), Plain(logs + np.log(off), "log_probs", False), None)


@pytest.mark.compiler
@pytest.mark.parametrize("level", LEVELS)
def test_every_generation_of_processors(tmp_path, rng, monkeypatch, level):
    monkeypatch.setattr(compiled, "kernels", built(level))
    for spread in (1.0, 4.0, 8.0):
        a, b = pair(rng, 20, 1000, spread, 10 ** rng.uniform(-4, 0.5, (20, 1)))
        check(coded(a, 16.0), coded(b, 16.0))
        check(coded(a, 16.0), Plain(b.astype(np.float32), "logits", False))
        check(Plain(a, "logits", False), coded(b, 16.0))
