"""The lanes of a comparison, each by itself and all together: what they call fine must be so, and it must be what they are for."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dumps import softmax, truth
from kullback._kernels import comparison, comparison_lanes
from kullback._kernels.comparison import compare_rows
from kullback._kernels.comparison_lanes import FAR, GOAL, LANES, MID, NEAR, Way, plain
from kullback._kernels.comparison_tile import Room, pieces_of

ROWS = 48


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """As if there were more rows: few would be taken in float64."""
    monkeypatch.setattr(comparison, "SMALL", 0)


def pairs(rng, form, dtype, categories, spread, shift):
    """Rows at noise from 1e-6 to 5, some with a category that one side all but excludes, some with one that both do.

    Sums of probabilities are off by up to 1e-3. Returns the arrays, and the normalised distributions in extended precision."""
    a = spread * rng.standard_normal((ROWS, categories))
    b = a + 10 ** rng.uniform(-6, 0.7, (ROWS, 1)) * rng.standard_normal(a.shape)
    if categories > 2:
        b[::5, 0], a[::5, 0] = a[::5, 0] + 8.0, a[::5, 0] - 12.0
    if categories > 7:
        a[::7, 3] = b[::7, 3] = -np.inf
    if form == "logits":
        x, y = (a + shift / 3).astype(dtype), (b + shift).astype(dtype)
        return x, y, softmax(x), softmax(y)
    x, y = ((softmax(side) * rng.uniform(0.999, 1.001, (ROWS, 1))).astype(dtype) for side in (a, b))
    wide = [side.astype(np.longdouble) for side in (x, y)]
    return x, y, *(side / side.sum(1, keepdims=True) for side in wide)


def taken(lane, form, x, y, normal=False, centred=False):
    room = Room(len(x), x.shape[1])
    room.begin(len(x))
    tile, known = room.tile(0, len(x)), room.known
    known.plain, known.normal, known.positive, known.centred = plain(x.max(1)), normal, bool((y >= 0.0).all()), centred
    with np.errstate(all="ignore"):
        if form == "logits":
            LANES[lane].logs(x, y, x.argmax(1), tile)
        else:
            LANES[lane].probs(x, y, tile)
        return LANES[lane].finish(room.numbers(0, len(x)), form == "logits")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("form", "centred"), [("logits", False), ("logits", True), ("probs", False)])
@pytest.mark.parametrize("lane", [NEAR, MID, FAR])
def test_what_a_lane_calls_fine_is_within_its_goal(rng, lane, form, centred, dtype):
    # Sums off by 1e-3 are too much for a KL below its square.
    suited = {NEAR: (1e-9 if form == "logits" else 3e-6, 1e-3), MID: (3e-3, 0.5), FAR: (0.25, 4.0)}[lane]
    fine = meant = 0
    for categories in (2, 3, 50, 256, 257, 3000):
        for spread, shift in ((0.5, 0.0), (2.0, 0.0), (2.0, 3.0), (8.0, 30.0)):
            x, y, p, q = pairs(rng, form, dtype, categories, spread, shift)
            found, expected = taken(lane, form, x, y, centred=centred), truth(p, q)
            for values, right in zip(found[:3], expected):
                # The truth, summed in extended precision, is itself off by 1e-18 or so.
                np.testing.assert_allclose(values[found.fine], right[found.fine], rtol=GOAL, atol=1e-17)
            weights = [side.astype(np.longdouble) for side in (x, y)]
            sums = [(side if form == "probs" else np.exp(side)).sum(1) for side in weights]
            for values, right in zip(np.add(found.base, found.log_z), sums):
                # float32 logits up to 60, and their differences.
                np.testing.assert_allclose(values[found.fine], np.log(right)[found.fine].astype(float), atol=1e-5)
            ordinary = np.arange(ROWS) % 5 > 0  # no category is all but excluded
            wanted = ordinary & (expected[0] > suited[0]) & (expected[0] < suited[1])
            if (shift == 0.0 or centred) and categories > 3:  # elsewhere differences are rounded too much for some, and JS too small
                fine, meant = fine + np.count_nonzero(found.fine & wanted), meant + np.count_nonzero(wanted)
    assert meant > 15
    assert fine >= 0.9 * meant


@pytest.mark.parametrize("form", ["logits", "probs"])
def test_far_takes_more_where_the_weight_is_spread(rng, form):
    """Rounding errors of many pieces are by chance of either sign: KL from 0.05 on. Not so where one category has most of the weight."""
    a = 2.0 * rng.standard_normal((12, 20_000))
    b = a + rng.uniform(0.25, 0.5, (12, 1)) * rng.standard_normal(a.shape)
    peaked_a, peaked_b = a.copy(), b.copy()
    peaked_a[:, 7], peaked_b[:, 7] = 16.0, 15.5
    for x, y, least in ((a, b, 0.05), (peaked_a, peaked_b, 0.15)):
        if form == "probs":
            x, y = (softmax(side) for side in (x, y))
        x, y = x.astype(np.float32), y.astype(np.float32)
        sides = [softmax(side) if form == "logits" else side / side.astype(np.longdouble).sum(1, keepdims=True) for side in (x, y)]
        expected = truth(*sides)
        for normal in (False, True):
            found = taken(FAR, form, x, y, normal)
            assert found.fine[expected[0] > least].all()
            for values, right in zip(found[:3], expected):
                np.testing.assert_allclose(values[found.fine], right[found.fine], rtol=GOAL)
    assert not found.fine[expected[2] < 0.01].any()  # of the peaked


def test_where_q_has_weight_that_p_all_but_lacks(rng):
    """Weights of P that float32 has only in part, or not at all, and large ones of Q beside them."""
    x = np.minimum(rng.standard_normal((120, 700)) - 20.0, -15.8)
    x[:, 1] = -15.5
    y = x + 2.0 * rng.standard_normal(x.shape)
    x[:, 7], y[:, 7] = np.linspace(-106.0, -60.0, 120), -15.5
    x, y = x.astype(np.float32), y.astype(np.float32)
    found = compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3), way=Way(FAR))
    for values, right in zip(found[:3], truth(softmax(x), softmax(y))):
        np.testing.assert_allclose(values[found.decided], right[found.decided], rtol=2 * GOAL)
    assert found.decided.all()


def test_sums_that_overflow(rng):
    """Q's mask, far below what float32 can multiply by weights of this size: not -inf, of which an error of -inf would seem small."""
    x = 2.0 * rng.standard_normal((60, 300)) + 22.0
    y = x + rng.standard_normal(x.shape)
    y[:, 3] = -1e30
    x, y = x.astype(np.float32), y.astype(np.float32)
    found = compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3), way=Way(FAR))
    p = softmax(x)
    _, kl_qp, js = truth(p, softmax(y))
    for values, right in zip(found[:3], (p[:, 3] * 1e30, kl_qp, js)):
        np.testing.assert_allclose(values, right.astype(float), rtol=2 * GOAL)
    assert found.decided.all()


@pytest.mark.parametrize("columns", [1, 7, 100, 512, 521, 1000, 32_000, 32_768, 50_257, 128_256, 151_936, 262_144])
def test_pieces(columns):
    count, length = pieces_of(columns)
    assert length <= 512
    assert columns <= count * length < columns + length
    # Vocabularies with a divisor that will do need no padding, for which probabilities are copied.
    assert (count * length == columns) == (columns not in (521, 50_257))
    assert length % 64 == 0 or columns <= 1000


def test_rows_whose_pieces_are_alike(rng):
    """Their rounding errors do not cancel: a few values, again and again, at distances where FAR has the least to spare."""
    for form, shift in (("logits", 0.0), ("logits", 3.0), ("logits", -12.0), ("probs", 0.0)):
        for period in (2, 3, 16):
            a = rng.standard_normal((100, period))
            b = a + rng.uniform(0.2, 1.0, (100, 1)) * rng.standard_normal(a.shape) + shift
            if form == "probs":
                a, b = (softmax(side).astype(float) * period / 24_000 for side in (a, b))
            a, b = a.astype(np.float32), b.astype(np.float32)
            found = compare_rows(np.tile(a, 24_000 // period), np.tile(b, 24_000 // period), (form, form), (1e-3, 1e-3), way=Way(FAR))
            wide = [side.astype(np.longdouble) for side in (a, b)]
            sides = [softmax(side) if form == "logits" else side / side.sum(1, keepdims=True) for side in wide]
            for values, right in zip(found[:3], truth(*sides)):
                np.testing.assert_allclose(values[found.decided], right[found.decided], rtol=2 * GOAL, atol=1e-17)


def test_far_is_not_for_rows_that_are_off_by_much(rng, monkeypatch):
    """Behind others that are not: ratios that underflow, and errors of large differences that do not cancel."""
    x = np.float32(0.5) * rng.standard_normal((6, 20_000)).astype(np.float32) - np.float32(14.0)
    y = x + np.float32(2.0) * rng.standard_normal(x.shape).astype(np.float32)
    y[3:] -= np.float32(90.0)
    monkeypatch.setattr(comparison, "_TILE", 4 * 2 * 20_000)
    found = compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3), way=Way(FAR))
    for values, right in zip(found[:3], truth(softmax(x), softmax(y))):
        np.testing.assert_allclose(values, right, rtol=2 * GOAL)
    assert not taken(FAR, "logits", x, y).fine[3:].any()


def test_far_takes_sums_of_probabilities_that_are_off(rng):
    """As if they were 1: JS changes by the square of what they are off, and no more is allowed than the goal."""
    p, q = (softmax(2.0 * rng.standard_normal((200, 300))) for _ in "pq")
    q *= 10 ** rng.uniform(-5, -0.5, (200, 1)) + 1.0
    p, q = p.astype(np.float32), q.astype(np.float32)
    expected = truth(*(side / side.astype(np.longdouble).sum(1, keepdims=True) for side in (p, q)))
    found = taken(FAR, "probs", p, q, normal=True)
    off = q.sum(1) - 1.0
    assert found.fine[off < 1e-3].all()
    assert not found.fine[off > 0.02].any()
    for values, right in zip(found[:3], expected):
        np.testing.assert_allclose(values[found.fine], right[found.fine], rtol=GOAL)


@pytest.mark.parametrize("form", ["logits", "probs"])
@pytest.mark.parametrize("categories", [50, 1000])
def test_all_sizes_side_by_side(rng, monkeypatch, form, categories):
    """Neighbours that are not alike, in small tiles: each row gets the lane it needs in the end, or float64."""
    monkeypatch.setattr(comparison, "_TILE", 4 * 4 * categories)
    x, y, p, q = pairs(rng, form, np.float32, categories, 2.0, 0.0)
    found = compare_rows(x, y, (form, form), (2e-3, 2e-3))
    expected = truth(p, q)
    assert found.decided[expected[0] > 1e-8].all()
    for values, right in zip(found[:3], expected):
        np.testing.assert_allclose(values[found.decided], right[found.decided], rtol=2 * GOAL, atol=1e-17)
    np.testing.assert_array_equal(found.top_q, y.argmax(1))


def test_how_rows_are_tiled_does_not_matter(rng, monkeypatch):
    x = rng.standard_normal((70, 300)).astype(np.float32)
    y = x + np.float32(0.02) * rng.standard_normal(x.shape).astype(np.float32)
    whole = compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3), shared=False)
    monkeypatch.setattr(comparison, "_TILE", 4 * 5 * 300)
    monkeypatch.setattr(comparison, "_TASK", 10 * 300)
    again = compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3))
    for one, other in zip(whole, again):
        np.testing.assert_array_equal(one, other)


def test_without_fast_logarithms_to_base_2(rng, monkeypatch):
    """As on a machine without AVX-512."""
    monkeypatch.setattr(comparison_lanes, "_log", np.log)
    monkeypatch.setattr(comparison_lanes, "_power", np.exp)
    monkeypatch.setattr(comparison_lanes, "_LOG_UNIT", 1.0)
    for form in ("logits", "probs"):
        x, y, p, q = pairs(rng, form, np.float32, 500, 2.0, 0.0)
        found = taken(FAR, form, x, y)
        assert found.fine.any()
        for values, right in zip(found[:3], truth(p, q)):
            np.testing.assert_allclose(values[found.fine], right[found.fine], rtol=GOAL)


class TestRefused:
    """What a lane must not call fine, or not with these figures."""

    @pytest.mark.parametrize("lane", [NEAR, MID, FAR])
    def test_no_distributions(self, rng, lane):
        p, q = (softmax(side).astype(np.float32) for side in rng.standard_normal((2, 6, 20)))
        if lane == NEAR:
            q = (p * (1 + 0.01 * rng.standard_normal(p.shape))).astype(np.float32)
        p[0, 3], q[1, 3], p[2, 3], q[2, 3] = -0.01, -0.01, -0.01, -0.012  # the last two have a ratio above 0
        p[3, 3], q[4, 3] = np.nan, np.nan
        fine = taken(lane, "probs", p, q).fine
        assert not fine[:5].any()

    @pytest.mark.parametrize("lane", [NEAR, MID, FAR])
    def test_one_side_only(self, rng, lane):
        x, y = rng.standard_normal((2, 4, 20)).astype(np.float32)
        if lane == NEAR:
            y = x + np.float32(0.01) * y
        x[0, 3], y[1, 3] = -np.inf, -np.inf
        assert not taken(lane, "logits", x, y).fine[:2].any()
        p, q = (softmax(side).astype(np.float32) for side in (x, y))
        assert not taken(lane, "probs", p, q).fine[:2].any()

    def test_a_ratio_that_has_lost_digits(self):
        """q/p = 3e-45 is the second smallest number of float32; the true one, 3.9e-45, is a third more."""
        q = np.array([[3.5e-45, 0.5, 0.5]], np.float32)
        p = np.array([[0.9, 0.05, 0.05]], np.float32)
        for lane in (MID, FAR):
            assert not taken(lane, "probs", p, q).fine[0]
        found = compare_rows(p, q, ("probs", "probs"), (1e-3, 1e-3))
        a, b = ([mpmath.mpf(float(v)) for v in side[0]] for side in (p, q))
        right = sum(s / sum(a) * mpmath.log((s / sum(a)) / (t / sum(b))) for s, t in zip(a, b))
        assert found.kl_pq[0] == pytest.approx(float(right), rel=1e-12)

    def test_a_weight_that_has_underflown(self):
        """Of P's second category nothing is left in float32, and Q has a third of a thousandth there: 87 nats lie between."""
        x = np.array([[0.0, -95.0, 1.0, 2.0]], np.float32)
        y = np.array([[2.0, -8.0, 0.0, 0.0]], np.float32)
        for lane in (MID, FAR):
            assert not taken(lane, "logits", x, y).fine[0]
        found = compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3))
        for values, right in zip(found[:3], truth(softmax(x), softmax(y))):
            np.testing.assert_allclose(values, right, rtol=1e-12)


def test_equal_rows_are_at_no_distance(rng):
    for form in ("logits", "probs"):
        x = rng.standard_normal((5, 40)).astype(np.float32)
        x = x if form == "logits" else softmax(x).astype(np.float32)
        x[2, x[2].argmin()] = 0.0 if form == "probs" else -np.inf
        found = compare_rows(x, x, (form, form), (5e-2, 5e-2))
        assert found.decided.all()
        assert not np.any(found[:3])


@pytest.mark.parametrize("row", [[1.2, -0.2], [1.2, -0.2, 0.0]])
def test_equal_rows_that_are_no_distribution_are_not_decided(row):
    x = np.array([row] * 40, np.float32)
    assert not compare_rows(x, x, ("probs", "probs"), (1e-3, 1e-3)).decided.any()


def test_the_series_of_js():
    """Its coefficients, from mpmath's own expansion."""
    expanded = mpmath.taylor(lambda y: (y * mpmath.exp(y) - (1 + mpmath.exp(y)) * mpmath.log((1 + mpmath.exp(y)) / 2)) / 2, 0, 6)
    assert [float(c) for c in expanded[2:]] == pytest.approx(comparison_lanes._JS, rel=1e-9)
