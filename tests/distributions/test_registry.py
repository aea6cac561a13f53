"""Users' own pairs, the list of pairs and where it is printed, and PyTorch's kl_divergence replaced."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributions as td

import kullback as kb
import kullback.torch
from kullback import distributions as own
from kullback._distributions import adapters, closed, families, registry, structures, supports, users
from kullback_command import main
from truths import condition

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _forget():
    """Whatever a test registers is gone after it."""
    before = dict(users._functions)
    yield
    users._functions.clear()
    users._functions.update(before)
    users._memo.clear()


class Mine:
    def __init__(self, value):
        self.value = value


class MineToo(Mine):
    pass


def test_classes_of_ones_own():
    @kb.register_kl(Mine, Mine)
    def mine(p, q):
        return abs(p.value - q.value)

    assert kb.kl(Mine(1.0), Mine(3.0)) == 2.0
    assert kb.kl(MineToo(1.0), Mine(3.0)) == 2.0  # inherited

    @kb.register_kl(MineToo, Mine)
    def nearer(p, q):
        return 7.0

    assert kb.kl(MineToo(1.0), Mine(3.0)) == 7.0
    assert kb.kl(MineToo(1.0), MineToo(3.0)) == 7.0
    assert kb.kl(Mine(1.0), MineToo(3.0)) == 2.0
    assert kb.kl(Mine(np.array([1.0, 2.0])), Mine(0.0), reduction="sum") == 3.0
    with pytest.raises(TypeError, match="q is a list and p a distribution object"):
        kb.kl(Mine(1.0), [1.0])


def test_duplicates_and_ambiguity_are_errors():
    kb.register_kl(Mine, MineToo)(lambda p, q: 1.0)
    with pytest.raises(ValueError, match=r"KL\(Mine‖MineToo\) is registered already, as .*lambda"):
        kb.register_kl(Mine, MineToo)(lambda p, q: 2.0)
    kb.register_kl(MineToo, Mine)(lambda p, q: 2.0)
    with pytest.raises(TypeError, match=r"KL\(MineToo‖MineToo\) is ambiguous: KL\(Mine‖MineToo\) and KL\(MineToo‖Mine\) fit equally well"):
        kb.kl(MineToo(1.0), MineToo(1.0))
    kb.register_kl(MineToo, MineToo)(lambda p, q: 3.0)
    assert kb.kl(MineToo(1.0), MineToo(1.0)) == 3.0
    for a, b in ((td.Normal, td.Normal), (own.Gamma, own.Exponential), (td.Exponential, td.Gamma)):
        with pytest.raises(ValueError, match="registered already, by kullback"):
            kb.register_kl(a, b)(lambda p, q: 0.0)
    for a, b, message in (
        (td.Normal, own.Normal, "two libraries, torch and kullback"),
        (3, td.Normal, "P is 3"),
        (object, Mine, "P is object"),
    ):
        with pytest.raises(TypeError, match=message):
            kb.register_kl(a, b)


class Louder(td.Normal):
    pass


def test_derived_from_a_librarys_class():
    p, q = Louder(0.0, 1.0), td.Normal(1.0, 1.0)
    assert kb.kl(p, q) == 0.5  # as what it derives from
    kb.register_kl(Louder, td.Normal)(lambda p, q: torch.tensor(9.0))
    assert kb.kl(p, q) == 9.0
    assert kb.kl(q, p) == 0.5
    assert kb.kl(p, Louder(1.0, 1.0)) == 9.0
    # The built-in pair is a candidate like any other: nearer on the left, further on the right.
    kb.register_kl(td.Distribution, Louder)(lambda p, q: torch.tensor(4.0))
    assert kb.kl(td.StudentT(3.0), p) == 4.0
    with pytest.raises(TypeError, match=r"KL\(Normal‖Louder\) is ambiguous: .*KL\(Distribution‖Louder\).*KL\(Normal‖Normal\)"):
        kb.kl(td.Normal(0.0, 1.0), p)
    # method="auto" asks the same registry.
    assert float(kb.kl(Louder(0.0, 1.0), td.Normal(1.0, 1.0), method="auto")) == 9.0


def test_a_pair_that_has_none():
    kb.register_kl(td.StudentT, td.Normal)(lambda p, q: torch.tensor(0.25))
    assert kb.kl(td.StudentT(3.0), td.Normal(0.0, 1.0)) == 0.25
    listed = kb.registered_pairs()
    assert ("StudentT", "Normal", ("torch",), "yours") in listed


def _valid_numbers(family):
    usual = {"low": 0.0, "high": 1.0, "loc": 0.0}
    return [0.4 if f.name in family.unit else usual.get(f.name, 1.5) for f in fields(family)]


def test_the_list_of_pairs():
    pairs = kb.registered_pairs()
    assert len({(x.p, x.q, x.kind) for x in pairs}) == len(pairs)
    by_name = {(x.p, x.q): x for x in pairs}
    assert by_name["Normal", "Normal"].kind == "closed form"
    assert {"kullback", "torch", "numpyro", "tfp", "distrax", "scipy"} <= set(by_name["Normal", "Normal"].ecosystems)
    assert by_name["Binomial", "Poisson"].kind == "sum"
    assert by_name["Logistic", "Normal"].kind == "quadrature"
    # What it says is so: every pair of numbers answers, by what it is said to.
    some = {
        "Gamma": (2.0, 1.0), "GammaScale": (2.0, 1.0), "Beta": (2.0, 3.0), "Pareto": (2.0, 1.0), "Weibull": (1.5, 1.0),
        "Uniform": (0.0, 1.0),
        "Exponential": (1.0,), "HalfNormal": (1.0,), "HalfCauchy": (1.0,), "Chi2": (3.0,), "Poisson": (2.0,), "Geometric": (0.3,),
        "Bernoulli": (0.3,), "BernoulliLogits": (0.3,), "Binomial": (3.0, 0.4), "NegativeBinomial": (2.0, 0.4), "InverseGamma": (2.0, 1.0),
        "InverseGaussian": (1.0, 2.0), "BinomialLogits": (3.0, 0.3), "NegativeBinomialLogits": (2.0, 0.3),
    }  # fmt: skip
    tried = 0
    for pair in pairs:
        if pair.kind == "quadrature" and tried % 7:  # some of the three hundred
            tried += 1
            continue
        if any(name not in vars(own) or getattr(own, name).event_ndim or getattr(own, name).parameter_ndims for name in pair[:2]):
            continue
        try:
            p, q = (getattr(own, name)(*some.get(name, _valid_numbers(getattr(own, name)))) for name in pair[:2])
        except TypeError:  # a family of other parameters than numbers
            continue
        if condition(type(p), type(q)):  # a closed form for some parameters only, of which these need not be
            continue
        found = kb.kl(p, q, method="auto", rng=0)
        tried += 1
        assert pair.kind.replace("infinite", "closed form") in found.method, pair
        assert found.value >= 0, pair
        if pair.kind == "infinite":
            assert kb.kl(p, q) == found.value == math.inf
        elif pair.kind == "closed form":
            assert kb.kl(p, q) >= 0
        else:
            with pytest.raises(kb.NoClosedForm):
                kb.kl(p, q)
    assert tried > 100


def test_ecosystems_are_what_their_readers_make():
    """The readers declare families; here they make records."""
    told = adapters.families_by_ecosystem()
    x = torch.tensor(0.5)
    for d in (td.Normal(x, x), td.Gamma(x, x), td.Bernoulli(x), td.Bernoulli(logits=x), td.Chi2(x), td.Weibull(x, x),
              td.Dirichlet(torch.ones(3)),
              td.Categorical(torch.ones(3)), td.MultivariateNormal(torch.zeros(2), torch.eye(2)),
              td.Independent(td.Normal(x, x), 0)):  # fmt: skip
        assert type(adapters.read(d)) in told["torch"], d
    assert own.InverseGaussian not in told["torch"]
    everything = set(families.FAMILIES)
    for readers in adapters.LIBRARIES.values():
        for name, reader in readers.items():
            assert reader.families, name
            assert set(reader.families) <= everything, name


def test_families_are_listed_once_in_each_place():
    records = {x for x in vars(own).values() if isinstance(x, type) and issubclass(x, own.Record)}
    assert set(families.FAMILIES) == records - {own.Record}
    assert own.__all__ == sorted(x.__name__ for x in records)


def test_other_families_of_a_law_are_declared():
    examples = {own.GammaLog: (2.0, 0.3), own.Exponential: (2.0,), own.Chi2: (3.0,), own.PoissonLog: (0.3,)}
    assert set(examples) == {x for x in families.FAMILIES if x.also}
    for family, numbers in examples.items():
        assert family.also == tuple(type(x) for x in family(*numbers).same_law())


# --- pairs that are infinite because of their supports ---------------------------------------------------------------------------------


def _apart():
    return [(p, q) for p in families.FAMILIES for q in families.FAMILIES if supports.apart(p, q)]


def test_the_rule_and_the_formulas_do_not_overlap():
    rule = set(_apart())
    assert len(rule) > 1300
    assert not rule & set(registry.pairs_with_formulas())
    assert {x.support for x in families.FAMILIES} == {*supports.NAMES, ""}
    listed = {(x.p, x.q) for x in kb.registered_pairs() if x.kind == "infinite"}
    assert listed == {(p.__name__, q.__name__) for p, q in rule}


@pytest.mark.parametrize("array", [np.float32, np.float64, torch.tensor])
def test_pairs_of_the_rule_are_infinite_in_the_shape_of_the_batches(array):
    dtype = np.float64 if array is np.float64 else np.float32
    for p, q in _apart():
        first, second = (
            family(*(array(np.full(shape, 1.5 if x.name == "high" else 0.5, np.float32)) for x in fields(family)))
            for family, shape in ((p, (2, 1)), (q, 3))
        )
        value = kb.kl(first, second)
        assert isinstance(value, torch.Tensor if array is torch.tensor else np.ndarray)
        assert value.shape == (2, 3)
        assert str(value.dtype).endswith(np.dtype(dtype).name)
        assert np.all(np.asarray(value) == math.inf), (p, q)


def test_registering_a_pair_of_the_rule():
    """A built-in answer, like a formula: only a class of one's own may have another."""
    with pytest.raises(ValueError, match=r"KL\(Normal‖Gamma\) is registered already, by kullback"):
        kb.register_kl(td.Normal, td.Gamma)(lambda p, q: 0.0)
    kb.register_kl(Louder, td.Gamma)(lambda p, q: torch.tensor(5.0))
    assert kb.kl(Louder(0.0, 1.0), td.Gamma(1.0, 1.0)) == 5.0
    assert kb.kl(td.Normal(0.0, 1.0), td.Gamma(1.0, 1.0)) == math.inf


# --- what a type checker sees ----------------------------------------------------------------------------------------------------------


def test_a_type_checker_sees_the_families(tmp_path):
    (tmp_path / "snippet.py").write_text(
        "from kullback.distributions import Gamma, Record\n"
        "import kullback.distributions as kd\n"
        "p: Record = Gamma(2.0, 1.0)\n"
        "q: kd.Normal = kd.Normal(0.0, 1.0)\n"
        "kd.Gama\n"
        "Gamma(2.0)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--cache-dir=cache", "snippet.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout.splitlines()
    assert len(told) == 3, told
    assert told[0].startswith('snippet.py:5: error: Module has no attribute "Gama"')
    assert told[1].startswith('snippet.py:6: error: Missing positional argument "rate"')


# --- printed ---------------------------------------------------------------------------------------------------------------------------


def test_the_command(capsys):
    assert main(["pairs", "--family", "gamma", "--kind", "closed form"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("KL(Gamma‖Gamma)") and "torch" in line for line in lines)
    assert all("Gamma" in line for line in lines[:-2])
    assert main(["pairs", "--ecosystem", "distrax", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"p", "q", "ecosystems", "kind"} == set(rows[0])
    assert all("distrax" in row["ecosystems"] for row in rows)
    assert main(["pairs", "--family", "Gama"]) == 2
    assert "--family Gama is not known: there are" in capsys.readouterr().err


def _where(capsys, *names):
    assert main(["pairs", "--where", *names]) == 0
    return capsys.readouterr().out


def test_where_a_pair_is(capsys):
    def place(function, path):
        return f"{Path(closed.__file__).parent / path}:{function.__code__.co_firstlineno}"

    shown = _where(capsys, "gamma", "NORMAL")
    assert shown.startswith(f"KL(Gamma‖Normal) has a closed form.\nFormula: {place(closed.gammas._gamma_normal, 'gammas.py')}\n")
    assert "Registered" not in shown  # the decorator stands above the formula
    assert "def _gamma_normal(ops" in shown
    assert "# gap(variance/σ²)/2" in shown
    # A formula of a loop: where the loop is, and the formula that it calls.
    shown = _where(capsys, "Weibull", "Rayleigh")
    assert "Registered: " in shown
    assert "gap(r) + c (k_q - k_p)/k_p" in shown
    shown = _where(capsys, "Logistic", "Logistic")
    assert "It holds for equal scales only." in shown
    shown = _where(capsys, "Chi2", "Normal")
    assert "Every Chi2 distribution belongs to the family Gamma too, which the formula takes." in shown
    assert "def _gamma_normal(ops" in shown


def test_where_there_is_no_formula(capsys):
    shown = _where(capsys, "Normal", "Gamma")
    assert "KL(Normal‖Gamma) is infinite, whatever the parameters." in shown
    assert "The family Normal lies on the real line, and Gamma on the positive numbers." in shown
    assert f"{supports.__file__}:{supports.never_inside.__code__.co_firstlineno}" in shown
    assert "def never_inside(" in shown
    shown = _where(capsys, "Logistic", "Normal")
    assert "KL(Logistic‖Normal) has no closed form. kullback.kl(p, q, method='auto') computes it by quadrature." in shown
    assert _where(capsys, "Dirichlet", "Wishart").startswith("KL(Dirichlet‖Wishart) has no closed form. kullback.register_kl")
    shown = _where(capsys, "Independent", "Normal")
    assert "It is computed from the parts, if the rule below takes the two." in shown
    assert f"{structures.__file__}:{structures.structural_kl.__code__.co_firstlineno}" in shown


def test_an_error_names_formulas_only():
    """It listed the families that KL(Poisson‖Q) is infinite for, 40 of them, as closed forms."""
    with pytest.raises(kb.NoClosedForm, match=r"from Poisson there is one to ((?!Cauchy).)*; to Geometric from ((?!Beta).)*; kullback"):
        kb.kl(own.Poisson(2.0), own.Geometric(0.3))


def test_where_names_are_checked(capsys):
    assert main(["pairs", "--where", "Gama", "Normal"]) == 2
    assert "--where Gama is not known: there are Bernoulli" in capsys.readouterr().err
    assert main(["pairs", "--where", "Gamma", "Normal", "--family", "Gamma"]) == 2
    assert "leave out --family, --ecosystem and --kind" in capsys.readouterr().err


def test_infinite_pairs_are_counted_apart(capsys):
    assert main(["pairs", "--kind", "infinite"]) == 0
    count = int(capsys.readouterr().out.splitlines()[-1].split()[0])
    assert count == len(_apart())
    assert main(["pairs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{count} more are infinite because of their supports: --kind infinite lists them"
    assert not any(" infinite " in line for line in lines[:-1])


def test_the_page_is_current():
    # In a process of its own: other tests, and examples of the documentation, register pairs.
    printed = subprocess.run([sys.executable, "-m", "kullback", "pairs", "--markdown"], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "pairs.md").read_text() == printed, "run: kullback pairs --markdown > docs/pairs.md"


# --- PyTorch's own name ----------------------------------------------------------------------------------------------------------------


def test_kl_divergence_is_replaced():
    theirs = td.kl_divergence
    p, q = td.Gamma(torch.tensor(1e4), torch.tensor(1.0)), td.Gamma(torch.tensor(1.001e4), torch.tensor(1.001))
    with kullback.torch.patched():
        for name in (td.kl_divergence, td.kl.kl_divergence):
            assert name(p, q).item() == pytest.approx(2.4984919e-07, rel=2e-5)
        # Not ours, but theirs.
        missing = td.Gumbel(0.0, 1.0), td.Normal(0.0, 1.0)
        assert td.kl_divergence(*missing).item() == pytest.approx(theirs(*missing).item(), rel=1e-6)
        with pytest.raises(NotImplementedError):
            td.kl_divergence(td.StudentT(3.0), td.Normal(0.0, 1.0))
    assert td.kl_divergence is td.kl.kl_divergence is theirs


class Theirs(td.Normal):
    pass


def test_what_users_registered_with_pytorch_stays():
    saved = dict(td.kl._KL_REGISTRY)
    try:
        td.register_kl(Theirs, Theirs)(lambda p, q: torch.tensor(42.0))
        p = Theirs(0.0, 1.0)
        with kullback.torch.patched():
            assert td.kl_divergence(p, p) == 42.0
            assert td.kl_divergence(td.Normal(0.0, 1.0), td.Normal(1.0, 1.0)) == 0.5
            kb.register_kl(Theirs, Theirs)(lambda p, q: torch.tensor(43.0))  # and ours before that
            assert td.kl_divergence(p, p) == 43.0
    finally:
        td.kl._KL_REGISTRY.clear()
        td.kl._KL_REGISTRY.update(saved)
        td.kl._KL_MEMOIZE.clear()


# --- single pairs ----------------------------------------------------------------------------------------------------------------------


def test_single_pairs_agree_with_batches_of_one():
    """Python floats and the framework's operations run the same formulas: the same digits, dtype and edges."""
    rng = np.random.default_rng(0)
    for name, n in (("Normal", 2), ("Laplace", 2), ("Cauchy", 2), ("Gamma", 2), ("Beta", 2), ("Exponential", 1), ("Poisson", 1),
                    ("Weibull", 2),
                    ("Bernoulli", 1), ("Geometric", 1), ("Uniform", 2), ("Pareto", 2), ("Chi2", 1)):  # fmt: skip
        for _ in range(20):
            p, q = (rng.uniform(0.05, 0.95, n) for _ in range(2))
            if name == "Uniform":
                p, q = np.sort(p), np.sort(q)
            for dtype in (torch.float32, torch.float64):
                one, many = (
                    kb.kl(*(getattr(own, name)(*(torch.tensor(x, dtype=dtype).expand(shape) for x in side)) for side in (p, q)))
                    for shape in ((), (1,))
                )
                assert one.shape == ()
                assert one.dtype == many.dtype == dtype
                # Libraries' exp and log differ in the last digit.
                np.testing.assert_allclose(one.item(), many.item(), rtol=1e-13 if dtype == torch.float64 else 2e-7, err_msg=name)
    poisson = [kb.kl(own.Poisson(torch.tensor(a)), own.Poisson(torch.tensor(b))).item() for a, b in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0))]
    assert poisson == [1.0, math.inf, 0.0]
    assert math.isnan(kb.kl(own.Normal(torch.tensor(0.0), torch.tensor(-1.0)), own.Normal(torch.tensor(0.0), torch.tensor(1.0))).item())
    scale = torch.tensor(1.0, requires_grad=True)
    kb.kl(td.Normal(0.0, scale), td.Normal(1.0, 1.0)).backward()
    assert scale.grad == 0.0
