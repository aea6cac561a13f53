"""A bounded part of the search for hostile input: the same cases in each run, and as many of a seed that is drawn anew.

`make fuzz MINUTES=60` goes on from here. `KULLBACK_HOSTILE_SEED=…` runs the drawn part again with a seed that was printed.
"""

from __future__ import annotations

import collections
import os
import random
from itertools import islice
from pathlib import Path

import array_cases
import file_cases
import judge
import numpy as np
import pytest
import runner
import table_cases
from known import is_known
from outcome import ERROR, REFUSED, RIGHT

import kullback as kb

FIXED = 20261119
DRAWN = int(os.environ.get("KULLBACK_HOSTILE_SEED") or random.SystemRandom().getrandbits(32))
FOLDER = Path(__file__).resolve().parents[2] / "build" / "fuzz"
# Cases of each kind in each half. Together they take half a minute of CPU time. `make fuzz` has JAX and tinygrad, which compile each.
CASES = {
    "arrays, NumPy": 800, "arrays, PyTorch": 600, "arrays, TensorFlow": 80, "losses, NumPy": 400, "losses, PyTorch": 300,
    "odd arguments": 300, "files": 150, "tables": 40,
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("half", ["fixed", "drawn"])
def test_each_case_is_right_or_refused_in_our_words(kind, half, capsys):
    seed = FIXED if half == "fixed" else DRAWN
    if half == "drawn":
        with capsys.disabled():
            print(f"\nhostile input, {kind}: KULLBACK_HOSTILE_SEED={seed}")
    failures = {}
    for number in islice(runner.seeds(seed), CASES[kind]):
        case = runner.generate(kind, number)
        found = runner.run(case)
        if found.failed and not is_known(case, found):
            failures.setdefault(runner.gist(found.why), (case, found))
    told = []
    for case, found in list(failures.values())[:3]:
        small, why = runner.smallest(case, found, seconds=10)
        path = runner.store(FOLDER, small, why, "python tests/hostile/fuzz.py --replay")
        told.append(
            f"{why.why}\n    {runner.modules()[runner.KINDS[kind][0]].command(small)[:500]}\n"
            f"    python tests/hostile/fuzz.py --replay {path}"
        )
    assert not failures, f"KULLBACK_HOSTILE_SEED={seed}: {len(failures)} sorts of failures, among them\n" + "\n".join(told)


class TestTheJudge:
    """The judge knows the truth and finds planted errors."""

    def kl(self, p, q):
        one = judge.mp.mpf(1)
        with judge.mp.workdps(60):
            return judge.kl(*(judge.log_normalised(row, "probs", one, None) for row in (p, q)))

    def test_published_values(self):
        assert float(self.kl([0.5, 0.3, 0.2], [0.4, 0.4, 0.2])) == pytest.approx(0.0252671539221587, rel=1e-14)
        # From Σ p² / q, log of which is the divergence of order 2.
        p, q = [judge.log_normalised(row, "probs", judge.mp.mpf(1), None) for row in ([0.5, 0.5], [0.25, 0.75])]
        assert float(judge.renyi(p, q, 2.0)) == pytest.approx(np.log(4 / 3), rel=1e-14)
        assert float(
            judge.js(*([judge.log_normalised(row, "probs", judge.mp.mpf(1), None) for row in ([1.0, 0.0], [0.0, 1.0])]))
        ) == pytest.approx(np.log(2), rel=1e-14)

    def test_categories_at_the_end_of_float64(self):
        """All but 1e-300 of either side cancels."""
        with judge.mp.workdps(judge.digits_for([[1.0, 1e-300]], ["probs"], 1.0)):
            found = judge.kl(*(judge.log_normalised(row, "probs", judge.mp.mpf(1), None) for row in ([1.0, 1e-300], [1.0, 2e-300])))
        assert float(found) == pytest.approx(1e-300 * (1 - np.log(2)), rel=1e-12)

    @pytest.mark.parametrize(
        ("kind", "spoiled"),
        [
            ("arrays, NumPy", lambda x: x * (1 + 1e-5)),
            ("arrays, NumPy", lambda x: np.where(x == np.inf, 1e300, x)[()]),
            ("arrays, NumPy", lambda x: x.astype(np.float64)),
            ("arrays, NumPy", lambda x: np.nan_to_num(x)[()]),
            ("arrays, PyTorch", lambda x: x * x.new_tensor(1 + 1e-5)),
            ("arrays, PyTorch", lambda x: x.detach() + 1e-3 * (x - x.detach())),
        ],
        ids=["off by 1e-5", "finite for inf", "other dtype", "NaN swallowed", "tensors off by 1e-5", "gradient"],
    )
    def test_planted_errors_are_found(self, kind, spoiled, monkeypatch):
        honest = kb.kl
        monkeypatch.setattr(kb, "kl", lambda *args, **options: spoiled(honest(*args, **options)))
        seeds = islice(runner.seeds(1), 400)
        assert any(runner.run(case).failed for case in (runner.generate(kind, n) for n in seeds) if case["function"] == "kl")

    def test_errors_of_others_are_found(self, monkeypatch):
        case = next(c for c in (runner.generate("arrays, NumPy", n) for n in range(100)) if c["function"] == "kl")
        for error in (KeyError("p"), RuntimeError("of a framework"), ValueError("not raised by us"), IndexError("list index out of range")):
            monkeypatch.setattr(kb, "kl", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
            assert runner.run(case).failed

    def test_a_call_that_hangs_is_found(self, monkeypatch):
        case = next(c for c in (runner.generate("arrays, NumPy", n) for n in range(100)) if c["function"] == "kl")

        def forever(*_, **__):
            while True:
                pass

        monkeypatch.setattr(kb, "kl", forever)
        assert "not finished" in runner.run(case, seconds=0.2).why

    def test_figures_of_files_and_tables(self, monkeypatch):
        """The means of a comparison, and a table's divergences, a millionth off."""
        from kullback._compare.record import ModelComparison
        from kullback._compare.tables.record import TableComparison

        for kind, record, name in (("files", ModelComparison, "to_json"), ("tables", TableComparison, "to_json")):
            honest = getattr(record, name)
            monkeypatch.setattr(
                record,
                name,
                lambda self, honest=honest: honest(self).replace('"js": 0.0', '"js": 0.1').replace('"mean": 0.0', '"mean": 0.9'),
            )
            outcomes = [runner.run(runner.generate(kind, n)) for n in islice(runner.seeds(3), 40)]
            assert any("is right" in found.why for found in outcomes if found.failed)

    def test_failures_become_small(self, monkeypatch):
        honest = kb.kl
        monkeypatch.setattr(kb, "kl", lambda *args, **options: honest(*args, **options) * 1.5)
        for number in runner.seeds(2):
            case = runner.generate("arrays, NumPy", number)
            if case["function"] == "kl" and len(case["arrays"][0]["values"]) > 8 and (found := runner.run(case)).failed:
                break
        small, why = runner.smallest(case, found)
        assert why.failed
        assert len(small["arrays"][0]["values"]) <= 2


def test_every_format_and_every_kind_of_result_occurs():
    """The generators make what they are meant to make."""
    cases = [file_cases.generate(n) for n in range(300)]
    assert {side["format"] for case in cases for side in case["sides"]} == {"npy", "npz", "safetensors", "pt", "kld"}
    assert {step[0] for case in cases for side in case["sides"] for step in side["damage"]} >= {
        "cut",
        "flip",
        "bomb",
        "pickle",
        "npy_header",
        "llama_field",
    }
    tables = {side["format"] for n in range(200) for side in table_cases.generate(n)["sides"]}
    assert tables == set(table_cases.FORMATS)
    layouts = {a["layout"] for n in range(400) for a in array_cases.generate(n, "numpy")["arrays"]}
    assert layouts >= {"list", "readonly", "big-endian", "fortran", "reversed", "strided", "zero-stride", "unaligned", "subclass"}
    results = collections.Counter(runner.run(runner.generate(kind, n)).status for kind in ("files", "arrays, NumPy") for n in range(60))
    assert min(results[RIGHT], results[REFUSED], results[ERROR]) >= 3
