"""Each script in examples/ runs, comes to the right numbers, prints what examples/README.md says it prints, and draws its picture."""

from __future__ import annotations

import ast
import math
import re
import runpy
import sys
from itertools import pairwise
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

import kullback as kb

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
README = (FOLDER / "README.md").read_text()
NUMBER = re.compile(r"-?\d+(?:\.(\d+))?")


@pytest.fixture(autouse=True)
def one_thread():
    """As the scripts have it: networks this small are slower on more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs `python examples/NAME.py --plot FILE` here, and returns the names the script has defined."""

    def run(name):
        picture = tmp_path / f"{name}.png"
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--plot", str(picture)])
        names = runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        same_but_for_rounding(capsys.readouterr().out, in_the_readme(name))
        assert picture.read_bytes().startswith(b"\x89PNG")
        return names

    return run


def load(name):
    return runpy.run_path(str(FOLDER / f"{name}.py"))


def in_the_readme(name):
    return re.search(rf"```text\n\$ python examples/{name}\.py\n(.*?)```", README, re.DOTALL)[1]


def same_but_for_rounding(printed, expected):
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", expected)
    for found, shown in zip(NUMBER.finditer(printed), NUMBER.finditer(expected)):
        # What lies on the border between two figures may be rounded either way.
        unit = 10.0 ** -len(shown[1] or "")
        assert abs(float(found[0]) - float(shown[0])) < 1.5 * unit, f"{found[0]} for {shown[0]} in\n{printed}"


def test_comparison_sees_differences():
    same_but_for_rounding("a 0.12 -3\n", "a 0.13 -3\n")
    for other in ("a 0.14 -3\n", "a 0.12 3\n", "b 0.12 -3\n", "a 0.12 -3 4\n", "a 0.12 -5\n"):
        with pytest.raises(AssertionError):
            same_but_for_rounding(other, "a 0.12 -3\n")


@pytest.mark.parametrize("name", SCRIPTS)
def test_readme_and_picture(name):
    assert f"]({name}.py)" in README
    assert in_the_readme(name)
    assert f"](images/{name}.png)" in README
    picture = (FOLDER / "images" / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 60_000


@pytest.mark.parametrize("name", SCRIPTS)
def test_imports_what_users_have(name):
    """kullback's public names only, and Matplotlib only to draw."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    found = {node: [alias.name for alias in node.names] for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))}
    modules = {node: [node.module] if isinstance(node, ast.ImportFrom) else names for node, names in found.items()}
    ours = [f"{m}.{n}" for node in found for m in modules[node] if m.split(".")[0] == "kullback" for n in found[node]]
    assert ours
    assert not any(part.startswith("_") for name in ours for part in name.split("."))
    assert not any("matplotlib" in m for node in tree.body if node in found for m in modules[node])


@pytest.mark.needs("jax", "tensorflow", "tinygrad")
def test_gradient_descent(run):
    names = run("gradient_descent")
    losses, found = names["results"]
    assert list(losses) == list(found) == ["PyTorch", "JAX", "TensorFlow", "tinygrad"]
    p, z, by_hand = names["P"].astype(np.float64), np.zeros(5), []
    assert p.sum() == pytest.approx(1, abs=1e-7)
    for _ in range(51):
        q = np.exp(z) / np.exp(z).sum()
        by_hand.append((p * np.log(p / q)).sum())
        z -= names["RATE"] * (q - p)
    q = np.exp(z) / np.exp(z).sum()
    for name, values in losses.items():
        assert round(values[0], 5) == 0.22997
        assert values[-1] < 0.005
        assert all(later < earlier for earlier, later in pairwise(values))
        # Fifty steps round float32 logits by 1e-7 each, at a distance of 0.03 (the root of the KL) or more from the bottom.
        np.testing.assert_allclose(values, by_hand, rtol=3e-4)
        np.testing.assert_allclose(found[name], q, atol=1e-5)


@pytest.mark.needs("jax")
def test_two_modes(run):
    names = run("two_modes")
    covering, right, left = names["results"].values()
    share, sd, correlation = 0.7, 0.8, 0.6
    assert names["SHARES"] == (share, 0.3)
    assert (names["MODES"], names["SD"], names["CORRELATION"]) == ((2.0, -2.0), sd, correlation)
    # KL(P‖Q) is least where Q has P's own moments: the mean of means, and the variance within modes and between them.
    mean = share * 2 + (1 - share) * -2
    means, sds, forward, _ = covering
    assert means == pytest.approx([mean] * 2, abs=1e-3)
    assert sds == pytest.approx([math.sqrt(sd**2 + 4 - mean**2)] * 2, abs=1e-3)
    # The entropies of Q and of each mode, and that of the choice between modes, which do not overlap but for a percent.
    choice = -share * math.log(share) - (1 - share) * math.log(1 - share)
    entropy_gap = math.log(sds[0] * sds[1]) - math.log(sd**2 * math.sqrt(1 - correlation**2))
    assert forward == pytest.approx(entropy_gap - choice, abs=0.01)
    # KL(Q‖P) is least on one mode, with the variance of one coordinate given the other.
    for (means, sds, to_q, to_p), mode, weight in ((right, 2, share), (left, -2, 1 - share)):
        assert means == pytest.approx([mode] * 2, abs=0.01)
        assert sds == pytest.approx([sd * math.sqrt(1 - correlation**2)] * 2, abs=0.01)
        assert to_p == pytest.approx(-math.log(weight) - math.log(1 - correlation**2) / 2, abs=0.01)
        # What each direction is blind to, the other counts.
        assert to_p < 1.5 < 6 < covering[3]
        assert forward < 1.5 < 6 < to_q


def test_vae(run):
    names = run("vae")
    history, (by_formula, by_grid) = names["results"]
    elbo, log_likelihood, divergence = map(np.array, zip(*history))
    np.testing.assert_allclose(elbo, log_likelihood - divergence, rtol=1e-12)
    assert elbo[0] == pytest.approx(-64 * math.log(2), abs=2)  # every pixel about even
    assert elbo[-1] > -10
    assert divergence.min() >= 0
    # On average no model can say more than -H of what it is trained on, so neither can a bound; the likelihood without its KL does.
    pictures = names["discs"](200, torch.Generator().manual_seed(0))
    _, counts = torch.unique(pictures, dim=0, return_counts=True)
    entropy = -sum(n / 200 * math.log(n / 200) for n in counts.tolist())
    assert elbo.max() < -entropy < log_likelihood.max()
    # The sum over a grid of a smooth density has no error to speak of: e^(-2π²(σ/h)²), σ ≥ 0.1 and h = 0.01.
    assert by_grid == pytest.approx(by_formula, rel=1e-12)


@pytest.mark.parametrize(("mean", "log_var"), [(0.0, 0.0), (1.5, 0.0), (0.0, -2.0), (-0.7, 1.1), (2.0, -4.0)])
def test_gaussian_kl_of_the_vae(mean, log_var):
    sd = mpmath.exp(mpmath.mpf(log_var) / 2)

    def term(x):
        u = (x - mean) / sd
        log_ratio = -(u**2) / 2 - mpmath.log(sd) + x**2 / 2
        return mpmath.exp(-(u**2) / 2) / (sd * mpmath.sqrt(2 * mpmath.pi)) * log_ratio

    with mpmath.workdps(30):
        truth = float(mpmath.quad(term, [mean + k * sd for k in range(-14, 15, 2)]))
    found = load("vae")["gaussian_kl"](torch.tensor([mean], dtype=torch.float64), torch.tensor([log_var], dtype=torch.float64))
    assert found.item() == pytest.approx(truth, rel=1e-13, abs=1e-15)


def test_distillation(run):
    names = run("distillation")
    results, sizes = names["results"]
    assert results["labels"][1] == 0  # it cannot know
    assert results["teacher, T = 8"][1] > 0.9
    assert results["teacher, T = 8"][0] > results["labels"][0] + 0.1
    divergences = [results[name][2] for name in ("labels", *(f"teacher, T = {t}" for t in (1, 2, 4, 8)))]
    assert all(later < earlier for earlier, later in pairwise(divergences))
    assert results["the teacher"][2] == 0
    falls, stays = zip(*sizes.values())
    assert falls[-1] < falls[0] / 500
    assert 1 < stays[-1] / stays[-2] < 1.05
    # By hand: d KL(p‖q) / d student = (q - p) / T, of softmaxes at T.
    student, teacher = (torch.randn(4, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in (1, 2))
    p, q = (np.exp(z.numpy() / 3) / np.exp(z.numpy() / 3).sum(-1, keepdims=True) for z in (teacher, student))
    plain = np.linalg.norm((q - p) / 3, axis=-1).mean()
    assert names["gradient_sizes"](student, teacher, 3.0) == pytest.approx([plain, 9 * plain], rel=1e-12)


def test_distillation_is_no_luck_of_the_seed(capsys):
    results, _ = load("distillation")["main"](temperatures=(1.0, 8.0), students=1, seed=7)
    assert "T = 8" in capsys.readouterr().out
    assert results["labels"][1] == 0
    assert results["teacher, T = 1"][1] < 0.5 < 0.9 < results["teacher, T = 8"][1]


@pytest.mark.needs("jax")
def test_policy_kl(run):
    names = run("policy_kl")
    results, beta, reward = names["results"], names["BETA"], names["REWARD"].ravel()
    assert [framework for _, framework in results] == ["PyTorch", "JAX"] * 3
    # π* by its definition, from the reference's logits.
    ref = np.exp(names["REFERENCE"]) / np.exp(names["REFERENCE"]).sum(-1, keepdims=True)
    ref = np.array([ref[0, i] * ref[1 + i, j] for i in range(4) for j in range(4)])
    best = ref * np.exp(reward / beta) / (ref * np.exp(reward / beta)).sum()
    ends = {}
    for (way, framework), (distances, probs) in results.items():
        ends[way] = (probs * np.log(probs / best)).sum()
        assert distances[-1] == pytest.approx(ends[way], rel=1e-9)
        # The same words are drawn, but for one that rounding decides now and then.
        np.testing.assert_allclose(distances, results[way, "PyTorch"][0], atol=0.005, err_msg=framework)
    exact, token, written = ends.values()
    assert exact < 0.002 < 5 * exact < token < 0.02
    assert written > 0.2


def test_compare_models(run, tmp_path):
    names = run("compare_models")
    found = names["result"]
    main, main.__globals__["print"] = names["main"], lambda *_, **__: None
    main(write=tmp_path)
    # The shards hold float32 of the same logits, and so does the data that is shipped, from some other machine.
    for folder, tolerance in ((tmp_path, 1e-5), (FOLDER / "data", 0.05)):
        from_files = kb.compare(folder / "reference", folder / "quantised")
        assert from_files.rows == found.rows
        assert from_files.kl_pq.mean == pytest.approx(found.kl_pq.mean, rel=tolerance)
        assert from_files.perplexity.q == pytest.approx(found.perplexity.q, rel=tolerance)
    assert sum(path.stat().st_size for path in (FOLDER / "data").rglob("*.npz")) < 300_000
    # By hand, from the shards.
    p, q = (
        np.concatenate([np.load(path)["logits"] for path in sorted((tmp_path / name).iterdir())]) for name in ("reference", "quantised")
    )
    p, q = (np.exp(x.astype(float)) / np.exp(x.astype(float)).sum(1, keepdims=True) for x in (p, q))
    assert found.kl_pq.mean == pytest.approx((p * np.log(p / q)).sum(1).mean(), rel=1e-5)
