"""`losses.kl_loss`: every direction, in every framework, against 50 digits; its Triton kernels, interpreted, in a process of their own."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from mpmath import mp

import kullback as kb
import kullback.torch
import oracle
from frameworks import ALL, EVERY, TorchInductor
from kullback.losses import TopK, kl_loss, linear_kl, token_terms
from with_triton import TESTS, interpret, run_with_triton

DIRECTIONS = ["forward", "reverse", "js", "skew", "reverse_skew"]
MIX = 0.3


def _truth(student, teacher, direction, temperature=1.0):
    """As the docstring defines it, term by term, at 50 digits."""
    with mp.workdps(50):
        sides = []
        for x in (student, teacher):
            weights = [mp.exp(mp.mpf(float(v)) / temperature) for v in x]
            sides.append([w / mp.fsum(weights) for w in weights])
        s, t = sides
        mix = lambda p, q: [mp.mpf(MIX) * a + (1 - mp.mpf(MIX)) * b for a, b in zip(p, q)]  # noqa: E731
        kl = lambda p, q: mp.fsum(a * mp.log(a / b) for a, b in zip(p, q) if a)  # noqa: E731
        return {
            "forward": lambda: kl(t, s),
            "reverse": lambda: kl(s, t),
            "js": lambda: MIX * kl(t, mix(t, s)) + (1 - MIX) * kl(s, mix(t, s)),
            "skew": lambda: kl(t, mix(t, s)),
            "reverse_skew": lambda: kl(s, mix(s, t)),
        }[direction]()


def _options(direction):
    return {"direction": direction} if direction in ("forward", "reverse") else {"direction": direction, "mix": MIX}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_direction(framework, rng, direction):
    student = rng.normal(size=(4, 9)).astype(np.float32)
    distance = np.array([[1.0], [1.0], [1e-3], [1e-3]])
    teacher = (student + distance * rng.normal(size=(4, 9))).astype(np.float32)
    found = framework.run(
        lambda s, t: kl_loss(student=s, teacher=t, temperature=2.0, reduction="none", **_options(direction)), student, teacher
    )
    truth = [float(_truth(s, t, direction, 2.0)) for s, t in zip(student, teacher)]
    np.testing.assert_allclose(found, truth, rtol=5e-6)  # the array contract, in float32


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_gradients(differentiable, rng, direction):
    student, teacher = rng.normal(size=(2, 5)).astype(np.float32)
    found = differentiable.gradients(lambda s, t: kl_loss(student=s, teacher=t, **_options(direction)), student[None], teacher[None])
    step = mp.mpf("1e-15")
    for side, gradient in enumerate(found):
        truth = []
        for i in range(5):
            values = []
            for sign in (1, -1):
                moved = [[mp.mpf(float(v)) for v in x] for x in (student, teacher)]
                moved[side][i] += sign * step
                values.append(_truth_mp(*moved, direction))
            truth.append(float((values[0] - values[1]) / (2 * step)))
        assert np.linalg.norm(gradient[0] - truth) <= 1e-5 * np.linalg.norm(truth)


@pytest.mark.compiler
def test_gradients_in_inductors_code(rng):
    test_gradients(TorchInductor(), rng, "js")


def _truth_mp(student, teacher, direction):
    # The same definition, on numbers that are not float64 any more.
    with mp.workdps(50):
        p = {}
        for name, x in (("s", student), ("t", teacher)):
            weights = [mp.exp(v) for v in x]
            p[name] = [w / mp.fsum(weights) for w in weights]
        first, second = ("t", "s") if direction in ("forward", "skew", "js") else ("s", "t")
        a, b = p[first], p[second]
        w = mp.mpf(MIX)
        m = b if direction in ("forward", "reverse") else [w * x + (1 - w) * y for x, y in zip(a, b)]
        kl = lambda x, y: mp.fsum(u * mp.log(u / v) for u, v in zip(x, y))  # noqa: E731
        return w * kl(a, m) + (1 - w) * kl(b, m) if direction == "js" else kl(a, m)


def test_padded_vocabularies_softcap_scale_and_weights(framework):
    student = np.array([[1.0, 2.0, 0.5], [0.0, np.nan, 1.0]])
    teacher = np.array([[0.0, 1.0, 3.0, -np.inf], [1.0, 1.0, 1.0, 1.0]])
    student, teacher = student.astype(np.float32), teacher.astype(np.float32)
    options = {"weights": [1.0, 0.0], "softcap": 5.0, "logit_scale": 0.5, "temperature": 2.0, "scale_t2": True}
    if framework.compiled:  # which cannot look for padding
        options["valid"] = 3
    found = framework.run(lambda s, t: kl_loss(student=s, teacher=t, **options), student, teacher)
    capped = [5 * np.tanh(0.5 * x[0].astype(float) / 5) for x in (student, teacher[:, :3])]
    assert found == pytest.approx(4 * float(_truth(*capped, "forward", 2.0)), rel=5e-6)


def test_valid(framework):
    student = np.array([[1.0, 2.0, 0.5, 7.0], [0.0, 1.0, 1.0, np.nan]], np.float32)
    teacher = np.array([[0.0, 1.0, 3.0], [1.0, 1.0, 1.0]], np.float32)
    found = framework.run(lambda s, t: kl_loss(student=s, teacher=t, valid=3, reduction="none", direction="js", mix=MIX), student, teacher)
    np.testing.assert_allclose(found, [float(_truth(s[:3], t, "js")) for s, t in zip(student, teacher)], rtol=5e-6)


def test_a_category_only_the_teacher_has_makes_forward_infinite_and_js_finite():
    student, teacher = np.array([[0.0, 0.0, -np.inf]]), np.zeros((1, 3))
    assert kl_loss(student=student, teacher=teacher) == np.inf
    assert kl_loss(student=student, teacher=teacher, direction="reverse") == pytest.approx(np.log(1.5))
    assert 0 < kl_loss(student=student, teacher=teacher, direction="js") < np.log(2)


def _linear(student, teacher, from_hidden):
    """`linear_kl` of these logits, which are the same in both rows: they are the biases of a projection of zeros."""
    zeros = student.new_zeros if torch.is_tensor(student) else np.zeros
    given = {"hidden": zeros((2, 3)), "weight": zeros((student.shape[1], 3)), "bias": student[1]}
    if from_hidden:
        made = {"teacher_hidden": zeros((2, 3)), "teacher_weight": zeros((teacher.shape[1], 3)), "teacher_bias": teacher[1]}
        return linear_kl(**given, **made)
    return linear_kl(**given, teacher_logits=teacher)


SIZES = {
    "forward": lambda s, t: kl_loss(student=s, teacher=t),
    "js": lambda s, t: kl_loss(student=s, teacher=t, direction="js"),
    "token_terms": lambda s, t: token_terms(s, t, [0, 1]).kl,
    "teacher_logits": lambda s, t: _linear(s, t, False),
    "teacher_weight": lambda s, t: _linear(s, t, True),
    "KLLoss": lambda s, t: kullback.torch.KLLoss()(student=torch.as_tensor(s), teacher=torch.as_tensor(t)),
    "KLMetric": lambda s, t: kullback.torch.KLMetric(form="logits").update(torch.as_tensor(s), torch.as_tensor(t)),
}


@pytest.mark.parametrize("entry", SIZES)
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_two_vocabularies_are_refused_with_both_sizes(entry, make):
    """Regression: logits of 32,000 and of 151,936 categories gave inf, or 2.56 the other way round."""
    small, large = make(np.zeros((2, 5))), make(np.zeros((2, 7)))
    for sides in ((small, large), (large, small)):
        with pytest.raises(ValueError, match=r"\b(5\b.*\b7|7\b.*\b5)\b"):
            SIZES[entry](*sides)
    large[:, 5:] = -np.inf  # padding
    for sides in ((small, large), (large, small)):
        if entry.startswith("KL"):  # as `kl`: sizes are equal, whatever the values
            with pytest.raises(ValueError, match="categories never broadcast"):
                SIZES[entry](*sides)
        else:
            assert SIZES[entry](*sides).max() == 0


# torch.compile leaves `linear_kl` outside of its graphs, and cannot trace a metric.
COMPILED = [
    pytest.param(framework, entry, id=f"{framework}-{entry}")
    for framework in ALL
    for entry in SIZES
    if framework.compiled and not entry.startswith("KL") and not (framework.library == "torch" and entry.startswith("teacher"))
]


@pytest.mark.parametrize(("framework", "entry"), COMPILED)
def test_two_vocabularies_are_refused_in_compiled_functions(framework, entry):
    """Regression: they gave NaN. Sizes are known there, values are not, so even padding needs `valid=` or equal sizes."""
    small, large = np.zeros((2, 5), np.float32), np.zeros((2, 7), np.float32)
    large[:, 5:] = -np.inf
    for sides in ((small, large), (large, small)):
        with pytest.raises((ValueError, torch._dynamo.exc.Unsupported), match=r"\b(5\b.*\b7|7\b.*\b5)\b"):
            framework.run(SIZES[entry], *sides)


def test_valid_and_weights_explain_sizes_that_differ():
    small, large = np.zeros((2, 5)), np.zeros((2, 7))
    assert kl_loss(student=large, teacher=small, valid=5) == 0
    assert kl_loss(student=large, teacher=small, valid=4) == 0
    with pytest.raises(ValueError, match=r"student has 7 categories and teacher 5, .* pass valid=5$"):
        kl_loss(student=large, teacher=small, valid=6)
    large[0, 5:], large[1, 5] = -np.inf, np.nan
    with pytest.raises(ValueError, match="student has 7 categories and teacher 5"):  # NaN is no padding
        kl_loss(student=large, teacher=small)
    assert kl_loss(student=large, teacher=small, weights=[1.0, 0.0]) == 0
    assert token_terms(large, small, [0, 1], mask=[1, 0]).kl.sum() == 0


@pytest.mark.parametrize("mix", [0, 1, 0.0, 1.0, -0.1, "half"])
def test_the_ends_of_the_mixture_are_errors_that_name_the_alternatives(mix):
    with pytest.raises(ValueError, match=r"mix is .*forward.*reverse"):
        kl_loss(student=[0.0, 1.0], teacher=[1.0, 0.0], direction="js", mix=mix)


def test_other_errors():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="direction is 'backward'"):
        kl_loss(student=x, teacher=x, direction="backward")
    with pytest.raises(ValueError, match="mix is for directions with a mixture"):
        kl_loss(student=x, teacher=x, mix=0.5)
    with pytest.raises(ValueError, match="impl is 'cuda'"):
        kl_loss(student=x, teacher=x, impl="cuda")
    with pytest.raises(ValueError, match="softcap is 0"):
        kl_loss(student=x, teacher=x, softcap=0)
    with pytest.raises(RuntimeError, match="impl='triton' cannot run: it needs CUDA tensors"):
        kl_loss(student=x, teacher=x, impl="triton")
    with pytest.raises(RuntimeError, match="these are NumPy arrays"):
        kl_loss(student=np.zeros(3), teacher=np.zeros(3), impl="triton")
    with pytest.raises(RuntimeError, match="inplace=True cannot be: it needs CUDA tensors"):
        kl_loss(student=x, teacher=x + 1, inplace=True)
    with pytest.raises(RuntimeError, match="inplace=True cannot be: its kernels take PyTorch tensors"):
        kl_loss(student=np.zeros(3), teacher=np.ones(3), inplace=True)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_errors_name_the_arguments_as_the_caller_does(direction):
    def sentence(student, teacher, **given):
        with pytest.raises((ValueError, TypeError)) as found:
            kl_loss(student=student, teacher=teacher, direction=direction, **given)
        return str(found.value)

    shapes = {"student has shape (2, 3)", "teacher has shape (4, 3)"}
    assert set(sentence(np.zeros((2, 3)), np.zeros((4, 3))).split(": ")[0].split(" and ")) == shapes
    assert sentence([[0.0, np.inf]], [[0.0, 0.0]]).startswith("student row 0 holds +inf at category 1")
    assert sentence(torch.zeros(1, 2), torch.full((1, 2), -np.inf)).startswith("teacher row 0 is -inf everywhere")
    assert sentence(np.zeros((2, 0)), np.zeros((2, 3))) == "student has no categories: its shape is (2, 0)"
    assert sentence(np.zeros(3), np.float64(1.0)).startswith("teacher is a single number")
    assert sentence(np.zeros(3), np.zeros(3, complex)).startswith("teacher is complex")
    assert sentence(torch.zeros(3), "logits").startswith("teacher is 'logits'")
    assert sentence(torch.zeros(2, 3), torch.zeros(2, 3), weights=torch.ones(3)).startswith("weights has shape (3,)")


def test_errors_of_the_module_and_of_token_terms_too():
    loss = kullback.torch.KLLoss(form=("logits", "probs"))
    with pytest.raises(ValueError, match=r"^teacher row 0 sums to 4.5, not 1: logits\? pass form='logits' for teacher$"):
        loss(student=torch.zeros(1, 2), teacher=torch.tensor([[3.0, 1.5]]))
    with pytest.raises(ValueError, match=r"^student has shape \(2, 3\) and teacher has shape \(4, 3\)"):
        kullback.torch.KLLoss(direction="reverse")(student=torch.zeros(2, 3), teacher=torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"for student and for teacher$"):
        kullback.torch.KLLoss(form=("logits", "scores"))
    with pytest.raises(ValueError, match=r"^logits_ref row 1 holds \+inf at category 0"):
        token_terms(np.zeros((2, 2)), np.array([[0.0, 0.0], [np.inf, 0.0]]), [0, 1])


X, W = torch.zeros(2, 3), torch.zeros(5, 3)
ENTRIES = {
    "kl": lambda **given: kb.kl(X, X + 1, form="logits", **given),
    "kl_loss": lambda **given: kl_loss(student=X, teacher=X + 1, **given),
    "linear_kl": lambda **given: linear_kl(hidden=X, weight=W, teacher_logits=torch.zeros(2, 5), **given),
    "token_terms": lambda **given: token_terms(X, X + 1, [0, 1], **given),
    "KLLoss": lambda **given: kullback.torch.KLLoss(**given)(student=X, teacher=X + 1),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_wants_temperatures_that_are_positive_finite_and_one_a_row(entry):
    call = ENTRIES[entry]
    for wrong in (0, -1.0, np.inf, np.nan, np.float32(0)):
        with pytest.raises(ValueError, match=r"^temperature is .*: it must be positive and finite$"):
            call(temperature=wrong)
    for wrong in ([1.0, 0.0], np.array([1.0, -1.0]), torch.tensor([np.inf, 1.0])):
        with pytest.raises(ValueError, match=r"^temperature is not positive and finite everywhere"):
            call(temperature=wrong)
    with pytest.raises(ValueError, match=r"^temperature has shape \(3,\): it must broadcast to the batch shape, \(2,\)$"):
        call(temperature=[1.0, 2.0, 3.0])
    if entry in ("kl_loss", "linear_kl", "KLLoss"):
        for several in ([1.0, 2.0], np.array([1.0, 2.0]), torch.tensor([1.0, 2.0])):
            with pytest.raises(ValueError, match=r"^scale_t2 needs one temperature"):
                call(temperature=several, scale_t2=True)
    if entry in ("kl_loss", "linear_kl"):
        for name in ("logit_scale", "softcap"):
            for wrong in (0, -1.0, np.inf, np.nan, "2", [1.0]):
                with pytest.raises(ValueError, match=rf"^{name} is .*: it must be a number above 0$"):
                    call(**{name: wrong})
        # Of a row that is left out, any will do.
        assert call(temperature=[1.0, 0.0], weights=[1.0, 0.0]) == 0


@pytest.mark.parametrize("make", [list, np.asarray, torch.tensor], ids=["list", "numpy", "torch"])
def test_one_temperature_a_row(rng, make):
    student, teacher = rng.normal(size=(2, 3, 7))
    temperatures = [0.5, 1.0, 3.0]
    truth = [float(_truth(s, t, "js", mp.mpf(u))) for s, t, u in zip(student, teacher, temperatures)]
    found = kl_loss(
        student=torch.tensor(student), teacher=torch.tensor(teacher), direction="js", mix=MIX, temperature=make(temperatures),
        reduction="none",
    )  # fmt: skip
    np.testing.assert_allclose(found, truth, rtol=1e-12)


@pytest.mark.parametrize(("name", "sparse"), [("torch", False), ("torch", True), ("jax-jit", False), ("tensorflow", False)])
def test_rows_of_weight_0_may_hold_anything_under_a_softcap_too(name, sparse):
    (framework,) = (f for f in EVERY if f.name == name)
    student = np.array([[1.0, 2.0, 0.5], [np.nan, np.inf, 1.0]], np.float32)
    teacher = np.array([[0.0, 1.0, 3.0], [np.nan, -np.inf, 1.0]], np.float32)
    top = TopK(np.array([[2, 1], [0, 1]]), np.log(np.array([[0.7, 0.2], [0.5, 0.1]], np.float32)), "renormalize_teacher")
    value, (slopes,) = framework.value_and_gradients(
        lambda s: kl_loss(student=s, teacher=top if sparse else teacher, weights=[2.0, 0.0], softcap=5.0), student
    )
    exact = torch.tensor(student[0], dtype=torch.float64, requires_grad=True)
    log_s = torch.log_softmax(5 * torch.tanh(exact / 5), -1)
    t = torch.softmax(5 * torch.tanh(torch.tensor(teacher[0], dtype=torch.float64) / 5), -1)
    t = torch.tensor([0.0, 2 / 9, 7 / 9], dtype=torch.float64) if sparse else t
    truth = torch.special.entr(t).neg().sum() - (t * log_s).sum()
    truth.backward()
    assert value == pytest.approx(truth.item(), rel=5e-6)  # the array contract, in float32
    assert oracle.relative_error(slopes[0], exact.grad.numpy()) <= oracle.GRADIENT_BOUND[np.float32]
    assert (slopes[1] == 0).all()


@pytest.mark.parametrize("mix", [0.1, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_small_mixes_keep_their_gradients(mix, dtype):
    """Where the teacher's probability exceeds the mixture's by far."""
    student, teacher = torch.tensor([[-5.0, 0.0, 3.0]]), torch.tensor([[5.0, 0.0, -3.0]])
    exact = [x.double().requires_grad_() for x in (student, teacher)]
    s, t = (x.softmax(-1) for x in exact)
    (t * (t / (mix * t + (1 - mix) * s)).log()).sum().backward()
    given = [x.to(dtype).requires_grad_() for x in (student, teacher)]
    kl_loss(student=given[0], teacher=given[1], direction="skew", mix=mix).backward()
    for x, e in zip(given, exact):
        assert (
            oracle.relative_error(x.grad.double().numpy(), e.grad.numpy())
            <= oracle.GRADIENT_BOUND[np.float32 if dtype == torch.float32 else np.float64]
        )


def test_agrees_with_kl(rng):
    s, t = rng.normal(size=(2, 4, 7))
    assert kl_loss(student=s, teacher=t) == pytest.approx(
        float(np.mean([oracle.kl(a, b, "logits").value for a, b in zip(t, s)])), rel=1e-12
    )
    assert kl_loss(student=s, teacher=t, reduction="sum") == kb.kl(t, s, form="logits", reduction="sum")


def test_kernels_need_instructions_of_ampere(monkeypatch):
    """Older GPUs, on which they do not compile, get array operations; AMD's are numbered otherwise."""
    from kullback._ops import torch as ops

    runs = ops._has_their_instructions.__wrapped__
    for cuda, capability, right in (("12.8", (7, 5), False), ("12.8", (8, 0), True), (None, (7, 5), True)):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert runs("cuda") is right


@pytest.mark.compiler
@pytest.mark.parametrize(("name", "least"), [("test_rows.py", 70), ("test_slices.py", 50)])
def test_kernels_in_tritons_interpreter(name, least):
    assert int(re.search(r"(\d+) passed", interpret(name))[1]) >= least


@pytest.mark.compiler
def test_the_tests_for_gpus_need_no_other_framework():
    """Regression: `pytest tests/gpu` read the conftest.py of all tests, and with it array_api_strict, JAX, TensorFlow and tinygrad."""
    absent = "array_api_strict", "jax", "tensorflow", "keras", "tinygrad", "pandas", "pyarrow", "hypothesis"
    hide = f"import sys; sys.modules.update(dict.fromkeys({absent})); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    collect = "-q", "--collect-only", "-p", "no:cacheprovider", str(TESTS / "gpu")
    found = run_with_triton("-c", hide, *collect, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert int(re.search(r"(\d+) tests collected", found)[1]) > 200
