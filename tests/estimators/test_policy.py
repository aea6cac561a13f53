"""policy_kl and the estimators under it, against policies whose every outcome is listed: means and mean gradients are sums, not samples."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

from frameworks import ALL
from kullback.estimators import from_policy, per_token
from kullback.estimators.policy import GRADIENTS, KINDS, LEVELS
from kullback.losses import deepseek_v32, grpo, policy_kl
from policies import Policies, slope

SAMPLED = tuple(kind for kind in KINDS if kind != "full")
UNBIASED = ("k1", "k3", "full")
CASES = [(kind, level, way, old) for kind in SAMPLED for level in LEVELS for way in GRADIENTS for old in (False, True)]
EAGER = [f for f in ALL if f.differentiable and not f.compiled]
COMPILED = [f for f in ALL if f.compiled]


@pytest.fixture(params=EAGER, ids=repr)
def eager(request):
    return request.param


# JAX compiles each primitive of an eager call, the whole of a jitted one in less time.
@pytest.fixture(params=[f for f in ALL if f.name in ("torch", "jax-jit-x64", "tensorflow", "tinygrad")], ids=repr)
def full_framework(request):
    return request.param


@pytest.fixture(params=[f for f in ALL if not f.compiled], ids=repr)
def any_eager(request):
    return request.param


def problem(size, steps, stops):
    rng = np.random.default_rng(3)
    policies = Policies(size, steps, stops=stops)
    return policies, *(policies.random(rng) for _ in range(3))


ONE, TWO, THREE = problem(3, 1, False), problem(3, 2, False), problem(3, 3, True)


def literal(policies, theta, ref, old, kind, level):
    """The mean of the terms as they are written, over what `old` draws; analytic in theta. None for `old`: what theta draws, a constant."""
    logp, l = policies.logp(theta), policies.logp(ref) - policies.logp(theta)
    k = {"k1": -l, "k2": l * l / 2, "k3": np.exp(l) - 1 - l, "abs": np.sign(l.real) * l}[kind]
    if old is None:
        return (policies.probs(theta.real)[:, None] * k).sum()
    ratio = logp - policies.logp(old)
    weight = np.exp(ratio if level == "token" else ratio.cumsum(-1))
    return (policies.probs(old)[:, None] * np.where(policies.mask, weight * k, 0)).sum()


def means(framework, policies, theta, ref, old, cases):
    """For each case, the mean over what is drawn of: the loss; its gradient to theta; that to the logits of the reference."""
    dtype = np.float64 if framework.double else np.float32
    hidden = np.where(policies.mask, 0.0, np.nan)  # what is masked may hold anything
    logp, logp_ref, logp_old = ((policies.logp(x) + hidden).astype(dtype) for x in (theta, ref, old))

    def options(case):
        kind, level, way, off_policy = case
        return {"kind": kind, "level": level, "gradient": way, "logp_old": logp_old if off_policy else None, "mask": policies.mask}

    def function(logp, logp_ref):
        total = 0.0
        for i in range(len(cases)):
            total = total + policy_kl(logp[i], logp_ref[i], **options(cases[i]), reduction="sum")
        return total

    tiled = [np.tile(x, (len(cases), 1, 1)) for x in (logp, logp_ref)]
    to_logp, to_ref = framework.gradients(function, *tiled)
    found = []
    for i, case in enumerate(cases):
        # Each sequence has its own terms, so that weighting them afterwards is a mean.
        drawn = policies.probs(old if case[3] else theta)
        values = policy_kl(logp, logp_ref, **options(case), reduction="none")
        values = values if case[1] == "sequence" else values.sum(-1)
        by = [np.einsum("n,nt,ntp->p", drawn, g[i], slope(policies.logp, x)) for g, x in ((to_logp, theta), (to_ref, ref))]
        found.append((drawn @ values, *by))
    return found


def check(framework, instance, cases):
    policies, theta, ref, old = instance
    # A sum of some dozen terms of size 1.
    atol = 1e-12 if framework.double else 5e-6
    for case, (value, gradient, ref_gradient) in zip(cases, means(framework, policies, theta, ref, old, cases)):
        kind, level, way, off_policy = case
        truth, drawn, told = policies.kl(level), old if off_policy else theta, f"{case}"
        assert value == pytest.approx(literal(policies, theta, ref, old if off_policy else None, kind, level), abs=atol), told
        if kind in UNBIASED:
            assert value == pytest.approx(truth(theta, ref, drawn), abs=atol), told
        if way == "exact":
            wanted = slope(lambda x: truth(x, ref, drawn), theta)  # noqa: B023
            wanted_ref = slope(lambda x: truth(theta, x, drawn), ref)  # noqa: B023
        else:
            wanted = slope(lambda x: literal(policies, x, ref, old if off_policy else None, kind, level), theta)  # noqa: B023
            wanted_ref = slope(lambda x: literal(policies, theta, x, old if off_policy else None, kind, level), ref)  # noqa: B023
        np.testing.assert_allclose(gradient, wanted, atol=atol, err_msg=told)
        np.testing.assert_allclose(ref_gradient, wanted_ref, atol=atol, err_msg=told)


@pytest.mark.parametrize("instance", [ONE, TWO, THREE], ids=["one-step", "two-step", "three-step-stops"])
def test_every_problem(instance):
    check(next(f for f in EAGER if f.name == "torch"), instance, CASES)


@pytest.mark.parametrize("framework", [f for f in EAGER if f.name != "torch"], ids=repr)
def test_every_framework(framework):
    # A kernel of tinygrad is a run of clang: of cases that share their formula there, one.
    cases = CASES
    if framework.name == "tinygrad":
        cases = [c for c in CASES if c[2:] == ("exact", True) and (c[1] == "sequence" or c[0] == "k3")]
        cases += [(kind, "token", "as_written", True) for kind in SAMPLED] + [("k3", level, "exact", False) for level in LEVELS]
    check(framework, THREE, cases)


@pytest.mark.parametrize("framework", COMPILED, ids=repr)
def test_compiled(framework):
    # Inductor takes ten seconds for each.
    cases = [("k3", "sequence", "exact", True), ("abs", "token", "as_written", False), ("k2", "sequence", "exact", False)]
    check(framework, THREE, cases[:1] if framework.name == "torch-compiled" else cases)


def test_the_published_numbers():
    """π = softmax(0, 1, 2), ref = softmax(1, 0, 0)."""
    framework = next(f for f in EAGER if f.name == "torch")
    policies, theta, ref = Policies(3, 1), np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.0, 0.0])
    cases = [(kind, "token", "as_written", False) for kind in ("k1", "k2", "k3")]
    cases += [(kind, level, "exact", False) for kind in SAMPLED for level in LEVELS]
    found = means(framework, policies, theta, ref, theta, cases)
    forward, backward = [-0.22374216, -0.11873731, 0.34247948], [-0.48608631, 0.03278691, 0.45329940]
    for (_, gradient, _), wanted in zip(found, [[0, 0, 0], forward, backward] + [forward] * 8):
        np.testing.assert_allclose(gradient, wanted, atol=5e-9)  # the digits printed
    for case, (value, *_) in zip(cases, found):
        if case[0] in UNBIASED:
            assert value == pytest.approx(0.6290185589, abs=5e-11)


def test_token_level_misses_the_gradient_of_sequences():
    policies, theta, ref, old = TWO
    framework = next(f for f in EAGER if f.name == "torch")
    ((_, token, _), (_, sequence, _)) = means(framework, policies, theta, ref, old, [("k3", level, "exact", False) for level in LEVELS])
    assert np.linalg.norm(token - sequence) > 0.05 * np.linalg.norm(sequence)


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_full(full_framework, level, off_policy):
    """The exact KL at every prefix: its value, and its gradient through the logits and through the tokens before."""
    if full_framework.name != "torch" and (level, off_policy) != ("sequence", True):
        pytest.skip("the same formula with less in it; test_exactness has the KL itself in every framework")
    policies, theta, ref, old = THREE
    dtype = np.float64 if full_framework.double else np.float32
    hidden = np.where(policies.mask, 0.0, np.nan)
    rows = [(policies.logits(x) + hidden[..., None]).astype(dtype) for x in (theta, ref)]
    taken, logp_old = ((policies.logp(x) + hidden).astype(dtype) for x in (theta, old))
    extra = {"logp_old": logp_old if off_policy else None, "kind": "full", "level": level, "mask": policies.mask, "reduction": "none"}

    def function(logits, ref_logits, taken):
        return policy_kl(logits, ref_logits, logp_taken=taken, **extra)

    values = full_framework.run(function, *rows, taken)
    if level == "sequence":
        to_logits, to_ref, to_taken = full_framework.gradients(function, *rows, taken)
    else:  # the tokens taken do not come in
        to_logits, to_ref = full_framework.gradients(lambda a, b: policy_kl(a, b, **extra), *rows)
        to_taken = np.zeros_like(taken)
    drawn = policies.probs(old if off_policy else theta)
    truth, drawn_by, atol = policies.kl(level), old if off_policy else theta, 1e-12 if full_framework.double else 5e-6
    assert drawn @ (values if level == "sequence" else values.sum(-1)) == pytest.approx(truth(theta, ref, drawn_by), abs=atol)
    gradient = np.einsum("n,ntv,ntvp->p", drawn, to_logits, slope(policies.logits, theta))
    gradient += np.einsum("n,nt,ntp->p", drawn, to_taken, slope(policies.logp, theta))
    np.testing.assert_allclose(gradient, slope(lambda x: truth(x, ref, drawn_by), theta), atol=atol)
    to_ref = np.einsum("n,ntv,ntvp->p", drawn, to_ref, slope(policies.logits, ref))
    np.testing.assert_allclose(to_ref, slope(lambda x: truth(theta, x, drawn_by), ref), atol=atol)


def test_rao_blackwell_has_less_variance():
    policies, theta, ref, _ = THREE
    drawn = policies.probs(theta)
    k1 = policy_kl(policies.logp(theta), policies.logp(ref), kind="k1", level="sequence", mask=policies.mask, reduction="none")
    full = policy_kl(
        policies.logits(theta), policies.logits(ref), kind="full", level="sequence", logp_taken=policies.logp(theta), mask=policies.mask,
        reduction="none",
    )  # fmt: skip
    kl = policies.sequence_kl(theta, ref)
    assert drawn @ k1 == pytest.approx(kl, abs=1e-12)
    assert drawn @ full == pytest.approx(kl, abs=1e-12)
    assert drawn @ (full - kl) ** 2 < drawn @ (k1 - kl) ** 2


LOG_RATIOS = [0.0, 1e-12, -1e-9, 3e-7, -1e-4, 0.01, -0.5, 0.99, 1.01, -3.0, 20.0, -40.0, 80.0]


def k3_truth(l):
    with mpmath.workdps(60):
        l = mpmath.mpf(float(l))
        return float(mpmath.exp(l) - 1 - l)


def test_k3_keeps_its_digits(any_eager, dtype):
    if dtype == np.float64 and not any_eager.double:
        pytest.skip("no float64")
    logp = np.array(LOG_RATIOS, dtype)
    found = any_eager.run(lambda x: per_token(x, x * 0.0), -logp)
    assert found.dtype == dtype
    # A few units in the last place, and 80 of them where e^80 magnifies the rounding of its argument.
    truth = np.array([k3_truth(l) for l in logp])
    assert (np.abs(found - truth) <= np.where(np.abs(logp) > 5, 100, 8) * np.finfo(dtype).eps * truth).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(any_eager, name, rng):
    import ml_dtypes

    if any_eager.name == "array-api-strict":
        pytest.skip("has no half precision")
    half = np.dtype(np.float16) if name == "float16" else np.dtype(ml_dtypes.bfloat16)
    logp = (-3 * rng.random((2, 5))).astype(half)
    ref = (logp.astype(np.float64) + 0.1 * rng.normal(size=(2, 5))).astype(half)
    wide = [x.astype(np.float64) for x in (logp, ref)]
    found = any_eager.run(lambda a, b: per_token(a, b), logp, ref)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, per_token(*wide), rtol=1e-6)
    assert policy_kl(logp, ref).dtype == np.float32


def slopes_of(logp, logp_ref, logp_old=None, **options):
    """By torch, float64: the loss and its gradients to logp and the reference, summed over tokens."""
    logp, logp_ref = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (logp, logp_ref))
    loss = policy_kl(logp, logp_ref, logp_old=logp_old, reduction="sum", **options)
    return (loss.item(), *(g.numpy() for g in torch.autograd.grad(loss, (logp, logp_ref), allow_unused=True)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_k3_does_not_overflow_and_keeps_its_gradient(eager, dtype):
    if dtype == np.float64 and not eager.double:
        pytest.skip("no float64")
    big = 120.0 if dtype == np.float32 else 900.0
    logp, ref = np.array([-big - 1, -1.0], dtype), np.array([-1.0, -1.5], dtype)
    for way, level in (("exact", "sequence"), ("as_written", "token")):
        function = lambda a, b: policy_kl(a, b, gradient=way, level=level, reduction="sum")  # noqa: B023, E731
        value = eager.run(function, logp, ref)
        to_logp, to_ref = eager.gradients(function, logp, ref)
        # Exponents count up to 20.
        assert value == pytest.approx(math.exp(20), rel=1e-5)
        np.testing.assert_allclose(to_ref[0], math.exp(20), rtol=1e-5)
        if way == "exact":
            # Σ over tokens from here on: k1 of this one, k3 of the next.
            np.testing.assert_allclose(to_logp, [-big + math.expm1(-0.5) + 0.5, 0.5], rtol=1e-6)
        else:
            assert to_logp[0] == pytest.approx(-math.exp(20), rel=1e-5)


@pytest.mark.parametrize("big", [19.0, 21.0, 87.0, 88.5, 200.0, 3e38, math.inf])
def test_no_log_ratio_makes_a_loss_infinite(big):
    """Regression: with a log-ratio of 88 the loss of GRPO was inf in float32, with a gradient of -2.75e37."""
    for loss in (grpo, lambda p, r: deepseek_v32(p, r, p), lambda p, r: deepseek_v32(p, r, torch.full_like(p, -big))):
        logp = torch.full((2, 8), -1.0)
        logp[0, 1:] = -1.0 - big
        logp.requires_grad_()
        value = loss(logp, torch.full((2, 8), -1.0))
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(logp.grad).all()
        assert logp.grad.abs().max() <= 1.1 * math.exp(20)
        if loss is grpo:
            # The mean over 8 tokens of k3 at min(big, 20), and over 2 responses. Log-ratios of float32 keep 1e-6 of 20.
            assert value.item() == pytest.approx(7 / 16 * math.exp(min(big, 20.0)), rel=1e-5)
            assert logp.grad[0, 1].item() == pytest.approx(-math.exp(min(big, 20.0)) / 16, rel=1e-5)
    # A prefix of many tokens, each with a ratio above 1.
    logp, old = torch.full((1, 100), -1.0, requires_grad=True), torch.full((1, 100), -1.0 - min(big, 1e30))
    for way in ("exact", "as_written"):
        value = policy_kl(logp, torch.full((1, 100), -1.5), logp_old=old, level="sequence", gradient=way)
        assert torch.isfinite(value)
        assert torch.isfinite(torch.autograd.grad(value, logp)[0]).all()
    # As an estimate nothing is cut before the range of the dtype ends.
    assert per_token([-1.0 - min(big, 700.0)], [-1.0])[0] == pytest.approx(k3_truth(min(big, 700.0)), rel=1e-12)


def test_a_ratio_that_makes_the_product_fit():
    """π/π_old = e^-900, ref/π = e^900: neither term of w·k3 = ref/π_old − w(1 + l) is out of range, though e^900 is."""
    value, to_logp, _ = slopes_of([-901.0], [-1.0], np.array([-1.5]))
    assert value == pytest.approx(math.exp(0.5), rel=1e-12)
    np.testing.assert_allclose(to_logp, 0, atol=1e-300)


def test_tokens_that_the_policy_cannot_draw():
    """Drawn by an old policy: ratio 0. Of w·k3 the reference's share is left; nothing of the others, and no gradient."""
    inf = math.inf
    for kind in SAMPLED:
        for level in LEVELS:
            value, to_logp, _ = slopes_of([-inf, -1.0], [-1.0, -2.0], np.array([-1.2, -1.0]), kind=kind, level=level)
            later = {"k1": 1.0, "k2": 0.5, "k3": math.exp(-1), "abs": 1.0}[kind] * (level == "token")
            # e^0.2, from log-probs that stand in for -inf and round in the fourteenth digit
            assert value == pytest.approx((math.exp(0.2) if kind == "k3" else 0.0) + later, rel=1e-12)
            assert to_logp[0] == 0
            value, to_logp, _ = slopes_of([-inf], [-inf], np.array([-1.2]), kind=kind, level=level)
            assert value == 0
            assert to_logp[0] == 0


def test_a_token_that_the_reference_cannot_draw_is_infinite():
    for kind in SAMPLED:
        assert policy_kl([-1.0, -2.0], [-math.inf, -2.0], kind=kind) == math.inf


def test_nan_is_not_swallowed():
    for kind in SAMPLED:
        for level in LEVELS:
            for arguments in (([math.nan, -1.0], [-1.0, -1.0], [-1.0, -1.0]), ([-1.0, -1.0], [math.nan, -1.0], [-1.0, -1.0])):
                assert np.isnan(policy_kl(*arguments[:2], logp_old=arguments[2], kind=kind, level=level))
                assert np.isnan(policy_kl(*arguments[:2], kind=kind, level=level))


def test_clipped_ratios():
    logp, ref, old = np.array([-1.0, -2.0, -0.5]), np.array([-1.5, -1.8, -0.6]), np.array([-2.0, -2.1, -0.1])
    k1, w = logp - ref, np.exp(logp - old)  # w = 2.7, 1.1, 0.67
    k3 = np.exp(-k1) - 1 + k1
    for clip, weight in ((1.5, np.minimum(w, 1.5)), ((0.8, 1.2), np.clip(w, 0.8, 1.2))):
        value, to_logp, _ = slopes_of(logp, ref, old, clip=clip)
        assert value == pytest.approx((weight * k3).sum(), rel=1e-12)
        np.testing.assert_allclose(to_logp, weight * k1, rtol=1e-12)
        value, to_logp, _ = slopes_of(logp, ref, old, clip=clip, gradient="as_written")
        assert value == pytest.approx((weight * k3).sum(), rel=1e-12)
        # The gradient of a ratio outside is cut: what is left is that of k3.
        np.testing.assert_allclose(to_logp, weight * (1 - np.exp(-k1)) + np.where(weight == w, w * k3, 0), rtol=1e-12)
    prefix = np.exp((logp - old).cumsum())
    value, to_logp, _ = slopes_of(logp, ref, old, clip=1.5, kind="k1", level="sequence")
    weight = np.minimum(prefix, 1.5)
    assert value == pytest.approx((weight * k1).sum(), rel=1e-12)
    np.testing.assert_allclose(to_logp, (weight * k1)[::-1].cumsum()[::-1], rtol=1e-12)
    taken = np.array([0.0, -0.7, -0.4])
    full = policy_kl(
        np.eye(3), np.zeros((3, 3)), kind="full", level="sequence", logp_old=taken - 0.6, logp_taken=taken, clip=1.5, reduction="none"
    )
    one = np.log(3) + math.e / (2 + math.e) - np.log(2 + math.e)
    assert full == pytest.approx(one * (1 + 1.5 + 1.5), rel=1e-12)


def test_reductions(any_eager):
    logp = np.array([[-1.0, -2.0, -1.0], [-0.5, np.nan, np.nan], [np.inf, np.nan, 0.0]], np.float32)
    ref = np.array([[-1.5, -1.5, -1.25], [-0.25, np.nan, 0.0], [0.0, 0.0, np.nan]], np.float32)
    mask = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    # k1 is 0.5, −0.5, 0.25 and −0.25
    wanted = {
        ("token", "sum"): 0.0, ("token", "mean"): 0.0, ("token", "batchmean"): 0.0, ("token", "sequence_mean"): (0.25 / 3 - 0.25) / 2,
        ("sequence", "sum"): 0.0, ("sequence", "mean"): 0.0, ("sequence", "batchmean"): 0.0,
        ("token", "none"): [[0.5, -0.5, 0.25], [-0.25, 0, 0], [0, 0, 0]], ("sequence", "none"): [0.25, -0.25, 0],
    }  # fmt: skip
    # Every framework takes the three that use all of its primitives.
    few = [("token", "sequence_mean"), ("sequence", "mean"), ("sequence", "none")]
    for level, reduction in wanted if any_eager.name in ("numpy", "torch") else few:
        value = wanted[level, reduction]
        found = any_eager.run(lambda a, b: policy_kl(a, b, kind="k1", level=level, mask=mask, reduction=reduction), logp, ref)  # noqa: B023
        np.testing.assert_allclose(found, value, atol=1e-7)
    k2 = {"sum": 0.3125, "mean": 0.3125 / 4, "batchmean": 0.3125 / 3, "sequence_mean": (0.28125 / 3 + 0.03125) / 2}
    for reduction, value in k2.items():
        assert policy_kl(logp, ref, kind="k2", mask=mask, reduction=reduction) == pytest.approx(value, rel=1e-6)
    assert policy_kl(logp, ref, kind="k2", level="sequence", mask=mask) == pytest.approx(0.3125 / 2, rel=1e-6)
    for reduction in ("sum", "mean", "batchmean", "sequence_mean"):
        assert policy_kl(logp, ref, mask=mask * 0, reduction=reduction) == 0
    logp, ref = logp[:1], ref[:1]
    assert (
        policy_kl(logp, ref, kind="k1") == policy_kl(logp, ref, kind="k1", reduction="sequence_mean") == pytest.approx(0.25 / 3, rel=1e-6)
    )


def test_masks_broadcast_and_have_any_dtype():
    logp, ref = np.array([[-1.0, -2.0], [-1.5, np.inf]]), np.array([[-1.5, np.nan], [-1.0, -2.0]])
    for mask in ([1, 0], [True, False], np.array([0.5, 0.0]), torch.tensor([True, False])):
        assert float(policy_kl(logp, ref, kind="k1", mask=mask, reduction="sum")) == 0
        assert float(policy_kl(logp, ref, kind="k2", mask=mask)) == 0.125


def test_from_policy():
    policies, theta, ref, old = THREE
    rng = np.random.default_rng(0)
    for kind, level, off_policy in [
        ("k1", "sequence", False),
        ("k3", "sequence", True),
        ("k3", "token", False),
        ("full", "sequence", False),
    ]:
        drawn = old if off_policy else theta
        index = rng.choice(len(policies.sequences), 4000, p=policies.probs(drawn))
        mask = policies.mask[index]
        made = [policies.logits(x)[index] if kind == "full" else policies.logp(x)[index] for x in (theta, ref)]
        extra = {"logp_old": policies.logp(old)[index]} if off_policy else {}
        if kind == "full":
            extra["logp_taken"] = policies.logp(theta)[index]
        found = from_policy(*made, kind=kind, level=level, mask=mask, **extra)
        truth = policies.kl(level)(theta, ref, drawn)
        if level == "token":
            truth /= policies.probs(drawn) @ policies.mask.sum(-1)
        assert found.n == 4000
        # Four standard errors; the seed is fixed.
        assert abs(found.value - truth) < 4 * found.stderr
        # The error itself, by drawing batches anew, to some percent (200 of them: 5%).
        batches = rng.choice(len(policies.sequences), (200, 4000), p=policies.probs(drawn))
        options = {"kind": kind, "level": level, "mask": policies.mask, "reduction": "none"}
        if kind == "full":
            values = policy_kl(policies.logits(theta), policies.logits(ref), logp_taken=policies.logp(theta), **options)
        else:
            values = policy_kl(policies.logp(theta), policies.logp(ref), logp_old=policies.logp(old) if off_policy else None, **options)
        values, lengths = (values.sum(-1), policies.mask.sum(-1)) if level == "token" else (values, np.ones(len(values)))
        again = values[batches].sum(-1) / lengths[batches].sum(-1)
        assert found.stderr == pytest.approx(again.std(), rel=0.2)
    assert math.isnan(from_policy([[-1.0, -2.0]], [[-1.5, -1.9]]).stderr)
    assert from_policy(torch.tensor([-1.0, -2.0]), [-1.5, -1.9], level="token", kind="k1").value == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: policy_kl([-1.0], [-1.0], kind="k4"), "kind is 'k4': it must be one of 'k1', 'k2', 'k3', 'abs', 'full'"),
        (lambda: policy_kl([-1.0], [-1.0], level="word"), "level is 'word'"),
        (lambda: policy_kl([-1.0], [-1.0], gradient="right"), "gradient is 'right'"),
        (lambda: policy_kl([-1.0], [-1.0], reduction="avg"), "reduction is 'avg'"),
        (lambda: policy_kl([-1.0], [-1.0], level="sequence", reduction="sequence_mean"), "needs level='token'"),
        (lambda: policy_kl([-1.0], [-1.0], clip=2.0), "it needs logp_old"),
        (lambda: policy_kl([-1.0], [-1.0], logp_old=[-1.0], clip=(2.0, 1.0)), "clip is (2.0, 1.0)"),
        (lambda: policy_kl([-1.0, -2.0], [-1.0]), "logp_ref has shape (1,) and logp (2,): one log-prob for each token, in both"),
        (lambda: policy_kl([-1.0], [-1.0], logp_old=[[-1.0]]), "logp_old has shape (1, 1) and logp (1,)"),
        (lambda: policy_kl([-1.0], [-1.0], mask=[1, 1]), "mask has shape (2,): it must broadcast to (1,), one entry a token"),
        (lambda: policy_kl(-1.0, -1.0, level="sequence"), "level='sequence' needs an axis of tokens"),
        (lambda: policy_kl([[-1.0, 0.0]], [[-1.0, 0.0]], kind="full", level="sequence"), "needs logp_taken"),
        (lambda: policy_kl([-1.0], [-1.0], logp_taken=[-1.0]), "logp_taken goes with kind='full'"),
        (lambda: from_policy([[-1.0]], [[-1.0]], mask=[[0]]), "the mask leaves none"),
    ],
)  # fmt: skip
def test_errors(call, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    assert message in str(caught.value)


def test_two_frameworks_and_tracers():
    import jax
    import jax.numpy as jnp

    with pytest.raises(TypeError, match="one call, one framework"):
        policy_kl(torch.tensor([-1.0]), jnp.array([-1.0]))
    with pytest.raises(TypeError, match="use per_token there"):
        jax.jit(lambda x: from_policy(x, x).value)(jnp.ones(3))
