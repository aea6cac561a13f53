"""What the library says when it is given something wrong: what, where and the likely fix; and when it says nothing.

Sentences are matched whole where they are short. What is decided before any array is touched runs on NumPy alone; checks of values
run on every eager framework, and their silence on every compiled one.
"""

from __future__ import annotations

import math
import pickle
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

import kullback as kb
import kullback.torch
from frameworks import ALL, Lazy
from kullback import losses
from kullback.estimators import from_policy, per_token, variational

jax = Lazy("jax")
jax_sparse = Lazy("jax.experimental.sparse")
jnp = Lazy("jax.numpy")
tf = Lazy("tensorflow")
tinygrad = Lazy("tinygrad")

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
GOOD = np.array([[0.5, 0.3, 0.2]] * 4)
EAGER = [f for f in ALL if not f.compiled]
QUICK = [f for f in EAGER if f.name != "tinygrad"]
PAIRS = (kb.kl, kb.js, kb.jeffreys, kb.cross_entropy, lambda p, q, **options: kb.renyi(p, q, order=0.5, **options))


def raises(error, sentence, function, *arguments, **options):
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    assert str(caught.value) == sentence


def with_row(row, at=2, rows=GOOD):
    made = rows.copy()
    made[at] = row
    return made


# --- options ---

FORM = "it must be one of 'probs', 'log_probs', 'logits', 'counts'"


@pytest.mark.parametrize("form", ["prob", None, 3, ("probs",), ("probs", "x"), ("probs",) * 3, {"probs"}], ids=str)
def test_form(form):
    for function in PAIRS:
        raises(ValueError, f"form is {form!r}: {FORM}, or a pair of these, for p and for q", function, P, Q, form=form)


def test_form_of_entropy():
    raises(ValueError, f"form is ('probs', 'logits'): {FORM}", kb.entropy, P, form=("probs", "logits"))
    raises(ValueError, f"form is 'nats': {FORM}", kb.entropy, P, form="nats")


@pytest.mark.parametrize(
    ("axis", "error", "sentence"),
    [
        (2, ValueError, "axis 2 is out of range: the arrays have 2 axes"),
        (-3, ValueError, "axis -3 is out of range: the arrays have 2 axes"),
        ((0, 5), ValueError, "axis 5 is out of range: the arrays have 2 axes"),
        ((), ValueError, "axis is empty: name the axis (or axes) that hold the categories"),
        ((0, 0), ValueError, "axis (0, 0) names the same axis twice"),
        ((1, -1), ValueError, "axis (1, -1) names the same axis twice"),
        (1.0, TypeError, "axis is 1.0: it must be an int or a tuple of ints"),
        ("last", TypeError, "axis is 'last': it must be an int or a tuple of ints"),
        (None, TypeError, "axis is None: it must be an int or a tuple of ints"),
        (True, TypeError, "axis is True: it must be an int or a tuple of ints"),
        ((0, 1.5), TypeError, "axis is (0, 1.5): it must be an int or a tuple of ints"),
    ],
    ids=str,
)
def test_axis(axis, error, sentence):
    for function in (*PAIRS, lambda p, q, **options: kb.entropy(p, **options)):
        raises(error, sentence, function, GOOD, GOOD, axis=axis)


def test_axis_of_one_axis():
    raises(ValueError, "axis 1 is out of range: the arrays have 1 axis", kb.kl, P, Q, axis=1)


@pytest.mark.parametrize("function", [*PAIRS, lambda p, q, **options: kb.entropy(p, **options)])
def test_reduction_and_base(function):
    for reduction in ("average", None, True):
        sentence = f"reduction is {reduction!r}: it must be one of 'none', 'sum', 'mean', 'batchmean'"
        raises(ValueError, sentence, function, P, Q, reduction=reduction)
    sentence = "keepdims=True needs reduction='none', not 'mean': a single number has no axes to keep"
    raises(ValueError, sentence, function, P, Q, reduction="mean", keepdims=True)
    for base in (0, 1, -2, 0.5, "2", True, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"^base is {re.escape(repr(base))}: it must be a .*number above 1"):
            function(P, Q, base=base)


def test_check_is_none_true_or_false():
    raises(ValueError, "check is 'no': it must be None, True or False", kb.kl, P, Q, check="no")
    raises(ValueError, "check is 2: it must be None, True or False", kb.kl, P, Q, check=2)


@pytest.mark.parametrize("mix", [0, 1, -0.5, 1.5, math.nan, "half", True, None])
def test_mix(mix):
    with pytest.raises(ValueError, match=rf"^mix is {mix!r}: it must lie between 0 and 1; .* use kl"):
        kb.js(P, Q, mix=mix)


@pytest.mark.parametrize("order", [-1, -math.inf, math.nan, "2", True, None])
def test_order(order):
    raises(ValueError, f"order is {order!r}: it must be a number ≥ 0 (inf included)", kb.renyi, P, Q, order=order)


def test_order_has_no_default():
    with pytest.raises(TypeError, match="order"):
        kb.renyi(P, Q)


@pytest.mark.parametrize("prior", [-1, math.nan, "1", True, [1, 2]], ids=str)
def test_prior(prior):
    with pytest.raises(ValueError, match=rf"^prior is {re.escape(repr(prior))}: it must be a .*number ≥ 0 \(pseudo-counts"):
        kb.kl(P, Q, prior=prior)


def test_single_rows_of_logits_beside_log_probs():
    """The fast way for one row took Q for logits, too, and gave 0.12."""
    raises(
        ValueError, "q has exponentials that sum to 3.71828, not 1: probabilities? pass form=('logits', 'probs')",
        kb.kl, np.array([0.0, 0.0]), np.array([1.0, 0.0]), form=("logits", "log_probs"),
    )  # fmt: skip


@pytest.mark.parametrize("form", ["probs", "log_probs"])
def test_any_sum_but_none(form):
    """check=False takes any sum. Without any mass Jeffreys of P was 10,000, and KL to a single category inf."""
    some, none = (np.array([[1.0, 0.0]]), np.zeros((1, 2))) if form == "probs" else (np.zeros((1, 1)), np.full((1, 1), -math.inf))
    for function in PAIRS:
        for pair in ((some, none), (none, some)):
            assert np.isnan(function(*pair, form=form, check=False)).all(), function


@pytest.mark.parametrize(("row", "what"), [([0.0, 1.0, math.inf], "holds inf"), ([0.0, 1.0, -math.inf], "holds -inf at category 2")])
@pytest.mark.parametrize("prior", [0.0, 0.5, 1.0])
def test_a_prior_beside_infinite_probabilities(row, what, prior):
    """inf times 0 was NaN, which passes for the caller's own, and one infinity spoilt the categories beside it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function, side in ((kb.entropy, "p"), (lambda p, **options: kb.kl(P, p, **options), "q")):
            with pytest.raises(ValueError, match=f"^{side} {what}: "):
                function(np.array(row), prior=prior)
    rows = kb.entropy(np.array([row, [0.0, 0.5, 0.5]]), prior=prior, check=False)
    assert np.isnan(rows).tolist() == [True, False]


def test_prior_and_forms():
    raises(ValueError, "prior is 1.5: for form 'probs' it is the share of uniform mixed in, between 0 and 1", kb.kl, P, Q, prior=1.5)
    assert kb.kl(P, Q, prior=1.5, form="counts") > 0
    for form in ("logits", "log_probs"):
        raises(ValueError, f"prior needs form 'counts' or 'probs', not {form!r}", kb.kl, np.log(P), np.log(Q), form=form, prior=0.5)
    raises(ValueError, "prior needs form 'counts' or 'probs', not 'logits'", kb.kl, P, Q, form=("probs", "logits"), prior=0.5)


def test_temperature():
    for form in ("probs", "counts", ("logits", "probs")):
        raises(ValueError, "temperature divides logits: it needs form 'logits' or 'log_probs'", kb.kl, P, Q, form=form, temperature=2.0)
    for temperature in (0, -1.5, math.nan):
        raises(
            ValueError,
            f"temperature is {temperature!r}: it must be positive and finite",
            kb.kl,
            P,
            Q,
            form="logits",
            temperature=temperature,
        )
    with pytest.raises(ValueError, match=r"temperature is .*-1.0.*: it must be positive"):
        kb.kl(P, Q, form="logits", temperature=np.float32(-1))


@pytest.mark.parametrize("framework", QUICK, ids=repr)
def test_a_row_whose_temperature_is_not_positive_is_no_distribution(framework):
    """An array of temperatures is values, not an option: NaN for that row, or an error, but never a number."""
    a, b = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], np.float32), np.array([[1.0, 0.0]] * 3, np.float32)
    try:
        found = framework.run(lambda a, b, t: kb.kl(a, b, form="logits", temperature=t), a, b, np.array([1.0, -1.0, 0.0], np.float32))
    except ValueError as error:
        assert "temperature" in str(error)  # noqa: PT017
    else:
        np.testing.assert_array_equal(np.isnan(found), [False, True, True])


@pytest.mark.parametrize("name", ["weights", "temperature"])
@pytest.mark.parametrize("make", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_shapes_of_weights_and_temperature(name, make):
    x = make(np.zeros((4, 3)))

    def call(v):
        return kb.kl(x, x, form="logits", **{name: v})

    with pytest.raises(ValueError, match=rf"^{name} has shape \(4, 1\): it must broadcast to the batch shape, which has 1 axis$"):
        call(np.ones((4, 1)))
    with pytest.raises(ValueError, match=rf"^{name} has shape \(4, 3\): it must broadcast to the batch shape, which has 1 axis$"):
        call(np.ones((4, 3)))
    with pytest.raises(ValueError, match=rf"^{name} has shape \(5,\): it must broadcast to the batch shape, \(4,\)$"):
        call(np.ones(5))
    x = make(np.zeros((1, 3)))
    with pytest.raises(ValueError, match=rf"^{name} has shape \(4,\): it must broadcast to the batch shape, \(1,\)$"):
        call(np.ones(4))
    x = make(np.zeros(3))
    with pytest.raises(ValueError, match=rf"^{name} has shape \(1,\): it must broadcast to the batch shape, which has 0 axes$"):
        call(np.ones(1))


@pytest.mark.parametrize("name", ["weights", "temperature"])
@pytest.mark.parametrize("wrong", ["2", ["a"], 1j, [[1.0], [1.0, 2.0]], np.ma.array([1.0, 2.0], mask=[False, True])], ids=str)
def test_weights_and_temperature_are_numbers(name, wrong):
    with pytest.raises((TypeError, ValueError), match=rf"^{name} "):
        kb.kl(np.zeros((2, 3)), np.ones((2, 3)), form="logits", **{name: wrong})


# --- arrays ---


def test_masked_arrays():
    sentence = "p is a masked array: pass its data, and the mask as weights (0 for rows to leave out)"
    raises(TypeError, sentence, kb.kl, np.ma.array(P, mask=[0, 1, 0]), Q)
    with pytest.raises(TypeError, match=r"^q is a masked array"):
        kb.kl(P, np.ma.array(Q))
    with pytest.raises(TypeError, match=r"^p is a masked array"):
        kb.entropy(np.ma.array(P))
    with pytest.raises(TypeError, match=r"^y is a masked array"):
        kb.kl_div(P, np.ma.array(Q))


def test_data_frames():
    sentence = "p is a pandas DataFrame: pass p.to_numpy() (a Series, beside another, is aligned by label)"
    raises(TypeError, sentence, kb.kl, pd.DataFrame([P]), Q)
    with pytest.raises(TypeError, match=r"^q is a pandas DataFrame: pass q.to_numpy\(\)"):
        kb.kl(P, pd.DataFrame([Q]))


@pytest.mark.parametrize("function", [*PAIRS, kb.rel_entr])
def test_types_of_numbers(function):
    names = ("x", "y") if function is kb.rel_entr else ("p", "q")
    raises(TypeError, f"{names[0]} is complex: probabilities are real numbers", function, P + 0j, Q)
    raises(TypeError, f"{names[1]} is complex: probabilities are real numbers", function, P, (Q + 0j).tolist())
    use = "use float16, bfloat16, float32, float64 or an integer type"
    for wrong in (P.astype(np.longdouble), ["a", "b", "c"], np.array([1, None, 2]), P.astype("datetime64[s]")):
        with pytest.raises(TypeError, match=rf"^{names[0]} has dtype .*: {use}$"):
            function(wrong, Q)
    with pytest.raises(ValueError, match=rf"^{names[0]} cannot be read as an array of numbers: "):
        function([[0.5], [0.5, 0.5]], Q)


@pytest.mark.parametrize(
    "make",
    [torch.tensor, lambda x: jnp.asarray(x), lambda x: tf.convert_to_tensor(x), lambda x: tinygrad.Tensor(x)],
    ids=["torch", "jax", "tensorflow", "tinygrad"],
)
@pytest.mark.parametrize(
    "wrong", [[[0.5], [0.5, 0.5]], ["a", "b", "c"], None, P + 1j, [1j, 1j, 1j]], ids=["ragged", "strings", "None", "complex", "list"]
)
def test_what_cannot_join_a_tensor_is_named(make, wrong):
    with pytest.raises((TypeError, ValueError), match=r"^q (cannot be read as an array of numbers|is complex|is None|has dtype)"):
        kb.kl(make(P), wrong)


def test_what_is_no_array_is_named_in_one_sentence():
    """Regression: sentences from inside the frameworks (KeyError 'logp_ref', "invalid data type 'str'", "Cannot access storage")."""
    x, half, z = [-1.0, -2.0], torch.tensor([0.5, 0.5]), torch.zeros(2, 3)
    place, top = np.zeros((2, 1), int), losses.TopK(np.zeros((2, 1), int), np.zeros((2, 1)))
    none, dense = "is None: it must be an array of numbers", "cannot be read as an array of numbers: it is"
    sparse, nested = f"{dense} sparse (torch.sparse_coo): pass .to_dense() of it", f"{dense} a nested tensor: pass torch.nested.to_pad"
    stack, last = "is a list of PyTorch arrays: stack them, so that it is one array", "only a teacher can be one"
    rows = torch.nested.nested_tensor([half, half])
    huge = "an integer of about 10^400, larger than any float"
    logits = lambda theta: theta  # noqa: E731
    for sentence, call in (
        *((f"logp_ref {none}", lambda f=f: f(x, None)) for f in (losses.policy_kl, losses.grpo, losses.kimi_k15, per_token, from_policy)),
        *((f"logp {none}", lambda f=f: f(None, x)) for f in (losses.policy_kl, losses.grpo, losses.kimi_k15, per_token, from_policy)),
        (f"logp_old {none}", lambda: losses.deepseek_v32(x, x, None)),
        (f"logp_ref {none}", lambda: losses.ppo_rewards(1.0, x, None, coefficient=0.1)),
        ("coefficient is None: it must be a number", lambda: losses.ppo_rewards(1.0, x, x, coefficient=None)),
        (f"tokens {none}", lambda: losses.token_terms(z, z, None)),
        (f"indices {none}", lambda: losses.kl_loss(student=z, teacher=losses.TopK(None, None))),
        (f"log_probs {none}", lambda: losses.kl_loss(student=z, teacher=losses.TopK(place, None))),
        (f"student is a TopK: {last}", lambda: losses.kl_loss(student=top, teacher=z)),
        ("q is a TopK: it must be an array of numbers", lambda: kb.kl(z, top)),
        ("teacher is a TopK: it must be an array of numbers", lambda: kullback.torch.KLLoss()(student=z, teacher=top)),
        (f"hidden {none}", lambda: losses.linear_kl(hidden=None, weight=z, teacher_logits=z)),
        ("p has dtype torch.float8_e4m3fn: use float16", lambda: kb.kl(half.to(torch.float8_e4m3fn), half)),
        ("kl_div(): input has dtype torch.float8_e4m3fn: pass", lambda: kullback.torch.kl_div(half.to(torch.float8_e4m3fn), half)),
        *((f"{name} {sparse}", lambda f=f: f(half.to_sparse())) for name, f in (("p", kb.entropy), ("x", lambda v: kb.rel_entr(v, v)))),
        *((f"{name} {nested}", lambda f=f: f(rows)) for name, f in (("p", kb.entropy), ("p", lambda v: kb.kl(v, v)))),
        ("p is a sparse matrix (csr_matrix): pass p.toarray()", lambda: kb.kl(scipy.sparse.csr_matrix([[0.5, 0.5]]), half)),
        ("p is a set: it must be an array of numbers", lambda: kb.entropy({0.5})),
        ("q is a generator: it must be an array of numbers", lambda: kb.kl(half, (0.5 for _ in half))),
        (f"q {stack}", lambda: kb.kl(half, [half, half])),
        (f"p {stack}", lambda: kb.kl([half[0], half[1]], half)),
        (f"prior is {huge}", lambda: kb.kl([1, 2], [3, 4], form="counts", prior=10**400)),
        (f"p holds {huge}", lambda: kb.kl([10**400, 1], [3, 4], form="counts")),
        (f"q holds {huge}", lambda: kb.kl(half, [10**400, 1], form="counts")),
        (f"p['a'] is {huge}", lambda: kb.kl({"a": 10**400}, {"a": 1}, form="counts")),
        (f"order is {huge}", lambda: kb.renyi(half, half, order=10**400)),
        (f"temperature holds {huge}", lambda: kb.kl(half, half, form="logits", temperature=10**400)),
        ("logits is 1: it must be a function from parameters to logits", lambda: losses.fisher_vector_product(1, 2, 3)),
        ("parameters hold 2: derivatives need PyTorch", lambda: losses.fisher_vector_product(logits, 2, 3)),
        ("parameters hold no arrays", lambda: losses.fisher_vector_product(logits, [], [])),
        ("vector must hold PyTorch arrays, as the", lambda: losses.fisher_vector_product(logits, half, None)),
        ("vector and parameters differ", lambda: losses.fisher_vector_product(logits, {"a": half}, {"b": half})),
    ):
        with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
            call()
        assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("make", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("bad", [-1.0, math.nan, -math.inf])
def test_masks_are_not_negative_and_not_nan(make, bad):
    """Regression: any of these counted as 1, although -inf means the opposite in attention masks."""
    x, z, mask = make([-1.0, -2.0]), make([[0.0, 1.0], [1.0, 0.0]]), make([1.0, bad])
    for call in (
        lambda: losses.policy_kl(x, x, mask=mask),
        lambda: losses.grpo(x, x, mask=mask),
        lambda: losses.token_terms(z, z, [0, 1], mask=mask),
        lambda: from_policy(x, x, mask=mask),
        lambda: kb.Comparison().update(z, z, form="logits", mask=mask),
    ):
        with pytest.raises(ValueError, match=rf"^mask holds {bad:g}.* at 1: it must be 0 for what is left out, and 1 for what counts$"):
            call()


def test_tensors_without_numbers_are_named_in_comparisons():
    """Regression: "Got unsupported ScalarType", "can't convert Sparse layout tensor to numpy", "Cannot copy out of meta tensor"."""
    z = torch.zeros(2, 3)
    for x in (z.to_sparse(), z.to(torch.float8_e4m3fn), torch.zeros(2, 3, device="meta"), torch.nested.nested_tensor([z[0], z[1]])):
        for call in (
            lambda x=x: kb.Comparison().update(x, z, form="logits"),
            lambda x=x: kb.Comparison().update(z, x, form="logits"),
            lambda x=x: kb.Comparison().update(z, z, form="logits", mask=x),
            lambda x=x: kb.compare(z, z, form="logits", tokens=x),
            lambda x=x: kb.compare(x, z, form="logits"),
        ):
            with pytest.raises(
                (TypeError, ValueError),
                match=r"^(p|q|P|mask|tokens) (\(Tensor, .*\) cannot be read as numbers: pass a dense|is a sparse|has dtype torch)",
            ):
                call()


def test_options_that_losses_and_estimators_cannot_use():
    """Regression: a TypeError of Python's, a coefficient of NaN, a ZeroDivisionError."""
    with pytest.raises(ValueError, match=r"^scale_t2 multiplies by temperature squared, and temperature is None: pass a number$"):
        losses.kl_loss(student=[1.0, 2.0], teacher=[2.0, 1.0], temperature=None, scale_t2=True)
    for value in (math.nan, -1.0, None):
        with pytest.raises(ValueError, match=rf"^value is {value}: it must be a number of at least 0$"):
            losses.FixedKLController(value)
    with pytest.raises(ValueError, match=r"^every row of x and y is the same point, so there is nothing to train a critic on"):
        variational(np.ones((50, 2)), np.ones((50, 2)))


def test_sparse_arrays_of_jax_and_tensorflow_are_named_in_one_sentence():
    dense = "cannot be read as an array of numbers: it is"
    for sentence, call in (
        ("p is sparse (BCOO): pass p.todense()", lambda: kb.entropy(jax_sparse.BCOO.fromdense(jnp.ones((1, 2)) / 2))),
        (f"p {dense} sparse: pass tf.sparse.to_dense(...) of it", lambda: kb.entropy(tf.sparse.from_dense([[0.5, 0.5]]))),
        (f"p {dense} ragged: pass .to_tensor() of it", lambda: kb.entropy(tf.ragged.constant([[1.0], [0.5, 0.5]]))),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert str(caught.value).startswith(sentence)


def test_integers_beyond_those_of_frameworks():
    """Regression: counts of 2**64 were "dtype object"."""
    for x in ([2**64, 2**65], np.array([2**64, 2**65]), torch.tensor([2.0**64, 2.0**65]), {"a": 2**64, "b": 2**65}):
        q = {"a": 1, "b": 2} if isinstance(x, dict) else [1, 2]
        assert float(kb.kl(x, q, form="counts")) == 0
    assert kb.kl(torch.tensor([1.0, 1.0]), [2**64, 2**64], form="counts") == 0


@pytest.mark.parametrize(
    "make",
    [np.asarray, torch.tensor, lambda x: jnp.asarray(x), lambda x: tf.convert_to_tensor(x), lambda x: tinygrad.Tensor(x)],
    ids=["asarray0", "tensor", "asarray1", "convert_to_tensor_v2_with_dispatch", "Tensor"],
)
def test_shapes_of_elements_that_do_not_broadcast(make):
    """Regression: each framework had a sentence of its own, and some an error of their own."""
    for function in (kb.rel_entr, kb.kl_div):
        sentence = "x has shape (2,) and y has shape (3,): they do not broadcast"
        raises(ValueError, sentence, function, make([0.5, 0.5]), make([0.5, 0.25, 0.25]))


def test_complex_tensors():
    for make in (torch.tensor, lambda x: jnp.asarray(x), lambda x: tf.convert_to_tensor(x)):
        raises(TypeError, "p is complex: probabilities are real numbers", kb.kl, make(P + 0j), Q)


def test_two_frameworks_in_one_call():
    tensors = {"PyTorch": torch.tensor(P), "JAX": jnp.asarray(P), "TensorFlow": tf.convert_to_tensor(P), "tinygrad": tinygrad.Tensor(P)}
    for first, x in tensors.items():
        for second, y in tensors.items():
            if first != second:
                sentence = (
                    f"p is a {first} array and q a {second} array: one call, one framework; "
                    "convert one of them (NumPy arrays, lists and numbers mix with any framework)"
                )
                raises(TypeError, sentence, kb.kl, x, y)
    with pytest.raises(TypeError, match=r"^p is a PyTorch array and weights a JAX array"):
        kb.kl(torch.tensor(GOOD), GOOD, weights=jnp.ones(4))
    with pytest.raises(TypeError, match=r"^q is a PyTorch array and temperature a TensorFlow array"):
        kb.kl(GOOD, torch.tensor(GOOD), form="logits", temperature=tf.constant(2.0))
    with pytest.raises(TypeError, match=r"^x is a PyTorch array and y a JAX array"):
        kb.rel_entr(tensors["PyTorch"], tensors["JAX"])


# --- shapes ---


@pytest.mark.parametrize("function", PAIRS)
@pytest.mark.parametrize("make", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_categories_never_broadcast(function, make):
    fix = (
        "pad the shorter side with probability 0, "
        "or give both sides labels (in mappings, pandas Series or label,value files), which are then aligned"
    )
    one, four = np.ones((2, 1)), np.full((2, 4), 0.25)
    raises(
        ValueError, f"p has 1 and q has 4 categories along axis 1, and categories never broadcast: {fix}", function, make(one), make(four)
    )
    raises(
        ValueError, f"p has 4 and q has 1 categories along axis 1, and categories never broadcast: {fix}", function, make(four), make(one)
    )
    raises(
        ValueError, f"p has 3 and q has 4 categories along axis 0, and categories never broadcast: {fix}", function, make(P), make(four[0])
    )
    raises(ValueError, f"p has 3 and q has 4 categories along axis 1, and categories never broadcast: {fix}", function, make(P), make(four))
    raises(
        ValueError,
        f"p has 2 and q has 1 categories along axis 0, and categories never broadcast: {fix}",
        function,
        make(four),
        make(four[:1]),
        axis=(0, 1),
    )


@pytest.mark.parametrize("make", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_shapes(make):
    raises(ValueError, "p is a single number: a distribution needs an axis of categories", kb.kl, make(1.0), make(1.0))
    raises(ValueError, "p is a single number: a distribution needs an axis of categories", kb.entropy, make(1.0))
    raises(ValueError, "p has no categories along axis 0", kb.kl, make(np.ones(0)), make(np.ones(0)))
    raises(ValueError, "p has no categories along axis 1", kb.entropy, make(np.ones((2, 0))))
    sentence = "p has shape (2, 3) and q has shape (5, 3): their batch axes do not broadcast"
    raises(ValueError, sentence, kb.kl, make(GOOD[:2]), make(np.concatenate([GOOD, GOOD[:1]])))


# --- values ---

INF = math.inf
VALUES = {
    # (form, row): what follows "p row 2 "
    ("probs", (0.5, 0.3, 0.3)): "sums to 1.1, not 1: logits? pass form='logits'",
    ("probs", (2.0, 5.0, 0.31)): "sums to 7.31, not 1: logits? pass form='logits'",
    ("probs", (3, 1, 4)): "sums to 8, not 1: counts? pass form='counts'",
    ("probs", (0.2, 0.2, 0.2)): "sums to 0.6, not 1: counts? pass form='counts'",
    ("probs", (0, 0, 0)): "sums to 0, not 1: no category has any probability; give the row weight 0 to leave it out",
    ("probs", (1.5, -2.0, 1.5)): "holds -2 at category 1: logits? pass form='logits'",
    ("probs", (math.log(0.5), math.log(0.25), math.log(0.25))): "holds -1.38629 at category 1: log-probabilities? pass form='log_probs'",
    ("probs", (0.5, 0.5, INF)): "holds inf: probabilities are finite",
    ("log_probs", (0.5, 0.25, 0.25)): "has exponentials that sum to 4.21677, not 1: probabilities? pass form='probs'",
    ("log_probs", (0.0, -1.0, 1.0)): "has exponentials that sum to 4.08616, not 1: logits? pass form='logits'",
    ("log_probs", (-INF, -INF, -INF)): "is -inf everywhere: no category has any probability; give the row weight 0 to leave it out",
    ("log_probs", (0.0, -INF, INF)): "holds +inf at category 2: a logit may be -inf (probability 0) but not +inf",
    ("logits", (0.0, INF, 1.0)): "holds +inf at category 1: a logit may be -inf (probability 0) but not +inf",
    ("logits", (-INF, -INF, -INF)): "is -inf everywhere: no category has any probability; give the row weight 0 to leave it out",
    ("counts", (3, -1, 2)): "holds -1 at category 1: counts are not negative",
    ("counts", (0, 0, 0)): "has no counts at all: pass prior= to add pseudo-counts, or give the row weight 0",
    ("counts", (1, INF, 1)): "holds inf: counts are finite",
}


def valid(form):
    return {"probs": GOOD, "log_probs": np.log(GOOD), "logits": np.log(GOOD) + 1, "counts": GOOD * 10}[form]


@pytest.mark.parametrize("framework", EAGER, ids=repr)
@pytest.mark.parametrize(("form", "row"), VALUES, ids=str)
def test_invalid_rows(framework, form, row):
    if framework.name == "tinygrad" and form != "probs":
        pytest.skip("seconds a form, and no code of its own here")
    good = valid(form)
    wrong, right = framework.array(with_row(row, rows=good)), framework.array(good)
    sentence = VALUES[form, row]
    p_wrong, q_wrong = f"p row 2 {sentence}", f"q row 2 {sentence}"
    raises(ValueError, p_wrong, kb.kl, wrong, right, form=form)
    if framework.name == "tinygrad":  # compiles every function anew; which side it was is the same code for all
        return
    raises(ValueError, q_wrong, kb.kl, right, wrong, form=form)
    for function in PAIRS:
        raises(ValueError, q_wrong, function, right, wrong, form=form, check=True)
        raises(ValueError, p_wrong, function, wrong, right, form=form, reduction="mean")
    raises(ValueError, f"p row 2 {sentence}", kb.entropy, wrong, form=form)
    # Weight 0: anything goes.
    weights = np.array([1.0, 1.0, 0.0, 1.0])
    assert np.isfinite(framework.numpy(kb.kl(wrong, right, form=form, weights=weights, reduction="sum")))
    assert np.isfinite(framework.numpy(kb.kl(right, wrong, form=form, weights=weights, check=True))).all()


@pytest.mark.parametrize("framework", QUICK, ids=repr)
def test_where_the_row_is(framework):
    good = np.broadcast_to(GOOD[0], (2, 4, 3)).astype(np.float32)
    bad = with_row([0.5, 0.5, 0.5], (1, 3), good)
    sentence = "sums to 1.5, not 1: logits? pass form='logits'"
    raises(ValueError, f"q row (1, 3) {sentence}", kb.kl, framework.array(good), framework.array(bad))
    moved = framework.array(np.ascontiguousarray(bad.transpose(2, 0, 1)))
    raises(ValueError, f"p row (1, 3) {sentence}", kb.entropy, moved, axis=0)
    raises(ValueError, f"p {sentence}", kb.entropy, framework.array(bad[1, 3]))
    # The first of several.
    raises(ValueError, f"p row 1 {sentence}", kb.entropy, framework.array(with_row([0.5, 0.5, 0.5], slice(1, 3), good[0])))
    # With two forms, the suggestion has two.
    pair = f"q row (1, 3) {sentence.replace(repr('logits'), repr(('counts', 'logits')))}"
    raises(ValueError, pair, kb.kl, framework.array(good), framework.array(bad), form=("counts", "probs"))
    # Under broadcasting the row is that of the result.
    bad = with_row([0.5, 0.5, 0.5], 2, good[0])
    raises(ValueError, f"q row (0, 2) {sentence}", kb.kl, framework.array(np.ascontiguousarray(good[:, :1])), framework.array(bad))


def test_where_the_row_is_over_several_axes():
    rows = np.full((2, 3, 2), 0.25)
    rows[:, 1] = 0.5
    raises(ValueError, "p row 1 sums to 2, not 1: logits? pass form='logits'", kb.entropy, rows, axis=(0, 2))


@pytest.mark.parametrize("framework", QUICK, ids=repr)
def test_tolerance_of_sums(framework):
    """1e-3; 5e-2 for half precision, on the side that has it."""
    for off, fine in ((1.0009, True), (0.9991, True), (1.0011, False), (0.9989, False)):
        for form, x in (("probs", P * off), ("log_probs", np.log(P * off))):
            x = framework.array(x.astype(np.float32))
            if fine:
                assert np.isfinite(framework.numpy(kb.entropy(x, form=form)))
            else:
                with pytest.raises(ValueError, match=r"^p .*sum(s)? to .*, not 1"):
                    kb.entropy(x, form=form)
    if framework.name != "array-api-strict":
        half = framework.array((P * 1.04).astype(np.float16))
        assert np.isfinite(framework.numpy(kb.kl(half, framework.array(P.astype(np.float32)))))
        with pytest.raises(ValueError, match=r"^q sums to 1.04"):
            kb.kl(framework.array(P.astype(np.float16)), framework.array((P * 1.04).astype(np.float32)))
        with pytest.raises(ValueError, match=r"^p sums to 1.05994"):
            kb.entropy(framework.array((P * 1.06).astype(np.float16)))


@pytest.mark.parametrize("framework", QUICK, ids=repr)
def test_check_false_never_looks_and_accepts_any_sum(framework):
    bad = framework.array(with_row([4.0, 2.0, 2.0]))
    good = framework.array(GOOD)
    for function in PAIRS:
        found = framework.numpy(function(bad, good, check=False))
        expected = function(with_row([0.5, 0.25, 0.25]), GOOD)
        np.testing.assert_allclose(found, expected, rtol=1e-5)  # float32, where JAX has no other
    # What has no normalised meaning is NaN, for its row.
    for row in ([-1.0, 1.0, 1.0], [INF, 0.0, 0.0], [0.0, 0.0, 0.0]):
        found = framework.numpy(kb.kl(framework.array(with_row(row)), good, check=False))
        np.testing.assert_array_equal(np.isnan(found), [False, False, True, False])
    for falsy in (0, np.False_):
        np.testing.assert_array_equal(np.isfinite(framework.numpy(kb.kl(bad, good, check=falsy))), True)


@pytest.mark.parametrize("framework", QUICK, ids=repr)
def test_nan_is_not_an_error_but_does_not_hide_one(framework):
    nan = with_row([math.nan, 0.5, 0.5], at=0)
    assert np.isnan(framework.numpy(kb.kl(framework.array(nan), framework.array(GOOD), check=True))[0])
    with pytest.raises(ValueError, match=r"^p row 3 sums to 1.5, not 1"):
        kb.kl(framework.array(with_row([0.5, 0.5, 0.5], at=3, rows=nan)), framework.array(GOOD))


@pytest.mark.parametrize("framework", QUICK, ids=repr)
def test_elementwise_terms_never_raise(framework):
    x = framework.array(np.array([-1.0, 2.0, math.nan, INF], np.float32))
    y = framework.array(np.array([1.0, -1.0, 1.0, 1.0], np.float32))
    np.testing.assert_array_equal(framework.numpy(kb.rel_entr(x, y)), [INF, INF, math.nan, INF])
    np.testing.assert_array_equal(framework.numpy(kb.kl_div(x, y)), [INF, INF, math.nan, INF])


# --- where values cannot be looked at ---


def replayed(framework, function, good, wrong):
    """The compiled function on `wrong`. TinyJit's first calls run eagerly, where a check may look: they get `good`."""
    if framework.name != "tinygrad-jit":
        return framework.run(function, *wrong)
    jitted = tinygrad.TinyJit(lambda *xs: function(*xs).realize())
    for arrays in (good, good, wrong):
        found = jitted(*map(framework.array, arrays))
    return found.numpy()


@pytest.mark.parametrize("framework", [f for f in ALL if f.compiled], ids=repr)
def test_invalid_rows_are_nan_where_values_cannot_be_looked_at(framework):
    """All invalid probabilities in one call, each in its own row, and nothing raised, whatever `check` says."""
    rows = np.array([row for form, row in VALUES if form == "probs"], np.float32)
    good = np.broadcast_to(GOOD[0], rows.shape).astype(np.float32)
    p, q = np.concatenate([rows, good, good[:1]]), np.concatenate([good, rows, good[:1]])
    # Beside them zeros, which are not invalid, and NaN.
    p = np.concatenate([p, [[0.0, 0.5, 0.5], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]])
    q = np.concatenate([q, [[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.0, 0.5, math.nan]]])
    # And a negative number beside a zero, where sums are right and no quotient is formed.
    zero, negative = [[0.0, 0.5, 0.5]], [[-0.25, 0.75, 0.5]]
    p, q = np.concatenate([p, zero, negative]).astype(np.float32), np.concatenate([q, negative, zero]).astype(np.float32)
    right = np.broadcast_to(GOOD[0], p.shape).astype(np.float32)
    found = replayed(framework, lambda p, q: kb.kl(p, q, check=True), (right, right.copy()), (p, q))
    expected = [math.nan] * (2 * len(rows)) + [0.0, math.log(2), math.inf, math.log(4 / 3) / 2, *[math.nan] * 3]
    np.testing.assert_allclose(found, expected, rtol=5e-6)  # the contract's bound for float32


@pytest.mark.parametrize("framework", [f for f in ALL if f.name in ("jax-jit", "tensorflow-function", "tensorflow-xla")], ids=repr)
@pytest.mark.parametrize("form", ["log_probs", "logits", "counts"])
def test_other_forms_are_nan_too(framework, form):
    rows = np.array([row for f, row in VALUES if f == form], np.float32)
    good = np.broadcast_to(valid(form)[0], rows.shape).astype(np.float32)
    p, q = np.concatenate([rows, good, good[:1]]), np.concatenate([good, rows, good[:1]])
    for function in (kb.kl, kb.js):
        found = framework.run(lambda p, q, f=function: f(p, q, form=form), p, q)
        np.testing.assert_array_equal(np.isnan(found), [True] * (2 * len(rows)) + [False])
    found = framework.run(lambda p: kb.entropy(p, form=form), p)
    np.testing.assert_array_equal(np.isnan(found), [True] * len(rows) + [False] * (len(rows) + 1))


def test_transforms_give_nan_and_do_not_raise():
    bad = with_row([0.5, 0.5, 0.5]).astype(np.float32)
    good = GOOD.astype(np.float32)
    expected = [False, False, True, False]
    found = torch.func.vmap(kb.kl)(torch.tensor(bad), torch.tensor(good))
    np.testing.assert_array_equal(np.isnan(found.numpy()), expected)
    found = jax.vmap(kb.kl)(jnp.asarray(bad), jnp.asarray(good))
    np.testing.assert_array_equal(np.isnan(np.asarray(found)), expected)
    with torch.device("meta"):
        assert kb.kl(torch.empty(4, 3), torch.empty(4, 3)).shape == (4,)


# --- the hierarchy ---


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (kb.InvalidValue, ValueError),
        (kb.NotComparable, kb.InvalidValue),
        (kb.InvalidOption, ValueError),
        (kb.WrongType, TypeError),
        (kb.CannotRun, RuntimeError),
        (kb.NoClosedForm, NotImplementedError),
        (kb.Unreadable, ValueError),
        (kb.Unwritable, kb.Unreadable),
    ],
)
def test_every_error_is_one_of_kullback_and_a_built_in_one(error, builtin):
    assert issubclass(error, builtin)
    assert issubclass(error, kb.KullbackError)
    assert (error.__module__, getattr(kb, error.__name__)) == ("kullback", error)


@pytest.mark.parametrize(
    ("form", "row", "expected"),
    [
        ("probs", (0.5, 0.8, -0.3), ("negative", -0.3, 2, "logits")),
        ("probs", (0.25, 0.25, 6.81), ("sum", 7.31, None, "logits")),
        ("log_probs", (0.5, 0.25, 0.25), ("sum", 2 * math.exp(0.25) + math.exp(0.5), None, "probs")),
        ("probs", (0, 0, 0), ("no_mass", 0.0, None, None)),
        ("counts", (0, 0, 0), ("no_mass", 0.0, None, None)),
        ("counts", (1, math.inf, 0), ("not_finite", math.inf, 1, None)),
        ("logits", (1, 0, math.inf), ("plus_inf", math.inf, 2, None)),
    ],
)
def test_the_record_of_an_invalid_row(form, row, expected):
    rows = with_row(row, rows=np.log(GOOD) if form.startswith("log") else GOOD)
    with pytest.raises(kb.InvalidValue) as caught:
        kb.cross_entropy(np.where(rows == rows[0], rows, rows[0]), rows, form=form)
    found = caught.value.complaint
    assert (found.side, found.row, found.form, found.forms) == ("q", (2,), form, (form, form))
    assert (found.problem, pytest.approx(found.value), found.category, found.likely) == expected


def test_errors_keep_their_record_in_pickles():
    with pytest.raises(kb.InvalidValue) as caught:
        kb.kl(with_row([3.0, 4.31, 0.0]), GOOD)
    loaded = pickle.loads(pickle.dumps(caught.value))
    assert (type(loaded), str(loaded)) == (kb.InvalidValue, str(caught.value))
    assert (loaded.complaint, loaded.parts) == (caught.value.complaint, caught.value.parts)


def test_a_comparison_says_which_row_as_data():
    seen = kb.Comparison()
    with pytest.raises(kb.NotComparable) as caught:
        seen.update(GOOD, with_row([3.0, 4.31, 0.0]), mask=[0, 1, 1, 1])
    found = caught.value.complaint
    assert (found.side, found.row, found.problem) == ("q", (2,), "sum")
    with pytest.raises(kb.NotComparable) as caught:
        seen.update(GOOD, with_row([math.nan, 1.0, 0.0]), mask=[0, 1, 1, 1])
    assert (caught.value.complaint.row, caught.value.complaint.problem) == ((2,), "nan")
