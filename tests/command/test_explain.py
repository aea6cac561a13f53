"""`kullback.explain` against mpmath, SciPy and numbers worked out by hand; its text, HTML and JSON."""

import json
import math
from collections import Counter
from dataclasses import FrozenInstanceError
from html.parser import HTMLParser

import mpmath
import numpy as np
import pytest
import scipy.stats

from frameworks import ALL
from kullback._explain import SCHEMA, explain
from kullback._explain.report import sheet, to_text

mpmath.mp.dps = 50
P, Q = [0.5, 0.3, 0.2], [0.1, 0.4, 0.5]


def exact(p, q):
    """KL, H and JS of two lists of mpf, normalised here."""
    p, q = [x / mpmath.fsum(p) for x in p], [x / mpmath.fsum(q) for x in q]

    def terms(a, b):
        return [mpmath.mpf(0) if x == 0 else mpmath.inf if y == 0 else x * mpmath.log(x / y) for x, y in zip(a, b)]

    m = [(x + y) / 2 for x, y in zip(p, q)]
    js = (mpmath.fsum(terms(p, m)) + mpmath.fsum(terms(q, m))) / 2
    return p, q, terms(p, q), terms(q, p), js


def close(found, true, relative=1e-14):
    return abs(mpmath.mpf(found) - true) <= relative * abs(true)


@pytest.mark.parametrize("base", [None, 2, 10, 3.0])
def test_every_number_against_mpmath(base):
    e = explain(P, Q, base=base)
    p, q, pq, qp, js = exact([mpmath.mpf(x) for x in P], [mpmath.mpf(x) for x in Q])
    unit = mpmath.log(base or mpmath.e)
    assert close(e.kl_pq, mpmath.fsum(pq) / unit)
    assert close(e.kl_qp, mpmath.fsum(qp) / unit)
    assert close(e.js, js / unit)
    for i in range(3):
        assert close(e.p[i], p[i])
        assert close(e.q[i], q[i])
        assert close(e.terms_pq[i], pq[i] / unit)
        assert close(e.terms_qp[i], qp[i] / unit)
        assert close(e.log_ratio[i], mpmath.log(p[i] / q[i]) / unit)
    assert e.entropy_p == pytest.approx(scipy.stats.entropy(P, base=base), rel=1e-14)
    assert e.entropy_q == pytest.approx(scipy.stats.entropy(Q, base=base), rel=1e-14)
    assert e.cross_entropy_pq == pytest.approx(float(-sum(a * mpmath.log(b) for a, b in zip(P, Q)) / unit), rel=1e-14)
    assert e.cross_entropy_qp == pytest.approx(float(-sum(b * mpmath.log(a) for a, b in zip(P, Q)) / unit), rel=1e-14)
    assert e.unit == {None: "nats", 2: "bits", 10: "dits", 3.0: "base-3 units"}[base]


def test_totals_are_exact_where_the_terms_cancel():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(200))
    q = p * (1 + 1e-8 * rng.standard_normal(200))
    e = explain(p, q)
    _, _, pq, qp, js = exact([mpmath.mpf(x) for x in p], [mpmath.mpf(x) for x in q])
    assert close(e.kl_pq, mpmath.fsum(pq), 1e-12)
    assert close(e.kl_qp, mpmath.fsum(qp), 1e-12)
    assert close(e.js, js, 1e-12)
    # Adding up the terms, even without rounding, is further off than the bound above: the totals cannot have come from there.
    assert abs(math.fsum(e.terms_pq) - e.kl_pq) > 1e-10 * e.kl_pq
    assert max(abs(float(a - b)) for a, b in zip(e.terms_pq, pq)) < 1e-12 * max(map(abs, pq))


def test_close_distributions_name_the_category_that_differs():
    p = np.array([0.25, 0.25, 0.25, 0.25])
    q = p + [1e-6, -1e-6, 0, 0]
    q[0], q[1] = 0.25 + 3e-6, 0.25 - 1e-6
    q[2:] -= 1e-6
    summary = explain(p, q, labels=["a", "b", "c", "d"]).summary
    # (3² : 1² : 1² : 1²) in second order: 9 of 12.
    assert "75% comes from 'a'" in summary
    assert "P gives 0.25 and Q 0.250003" in summary


def test_logits_temperature_and_absent_categories():
    a, b = [0.3, -1.2, 2.0, -math.inf], [0.1, 0.2, -math.inf, -math.inf]
    e = explain(a, b, form="logits", temperature=2.0)
    soft = [[mpmath.mpf(0) if x == -math.inf else mpmath.exp(mpmath.mpf(x) / 2) for x in row] for row in (a, b)]
    p, q, _, qp, js = exact(*soft)
    assert e.kl_pq == math.inf
    assert close(e.kl_qp, mpmath.fsum(qp))
    assert close(e.js, js)
    assert e.terms_pq[2] == math.inf
    assert e.terms_qp[2] == 0
    assert e.log_ratio[2] == math.inf
    assert math.isnan(e.log_ratio[3])
    assert close(e.log_ratio[0], mpmath.log(p[0] / q[0]))
    assert "temperature 2" in e.given_p.note


def test_a_present_category_too_small_for_float64_is_not_absent():
    e = explain([0.0, -2000.0], [-1000.0, 0.0], form="logits")
    assert e.kl_pq == pytest.approx(1000, rel=1e-12)
    assert e.kl_qp == pytest.approx(2000, rel=1e-12)
    assert [row.cells[1:3] for row in sheet(e).rows] == [("1.0000", "~0"), ("~0", "1.0000")]


def test_mixed_forms():
    e = explain(P, np.log(Q), form=("probs", "log_probs"))
    assert e.kl_pq == pytest.approx(explain(P, Q).kl_pq, rel=1e-14)
    assert (e.given_p.form, e.given_q.form) == ("probs", "log_probs")
    assert e.given_q.note == "Q was given as log-probabilities, whose exponentials sum to 1."


@pytest.mark.parametrize(
    ("p", "form", "prior", "note", "total"),
    [
        ([10, 20, 10], "counts", None, "P was given as counts, which sum to 40; divided by that.", 40),
        ([10, 20, 10], "counts", 0.5, "which sum to 40; the prior 0.5 was added to each of the 3, and all divided by 41.5.", 41.5),
        ([0.5, 0.25, 0.2504], "probs", None, "P was given as probabilities, which sum to 1.0004; divided by that.", 1.0004),
        ([0.5, 0.25, 0.25], "probs", None, "P was given as probabilities, which sum to 1.", 1),
        ([0.5, 0.25, 0.25000004], "probs", None, "sum to 1 + 4e-08; divided by that.", 1.00000004),
        ([0.5, 0.25, 0.25], "probs", 0.1, "sum to 1; then mixed with a share of 0.1 of the uniform distribution.", 1),
        ([math.nan, 3, 4], "counts", None, "P was given as counts, which sum to nan; divided by that.", math.nan),
        ([math.nan, 0.5, 0.5], "probs", None, "P was given as probabilities, which hold NaN.", math.nan),
        ([0.0, 1.0, 2.0], "logits", None, "P was given as logits, turned into probabilities by softmax.", 1 + math.e + math.e**2),
    ],
)
def test_how_the_input_was_normalised(p, form, prior, note, total):
    e = explain(p, p, form=form, prior=prior)
    assert e.given_p.note.endswith(note)
    assert e.given_p.total == pytest.approx(total, rel=1e-14, nan_ok=True)
    assert e.p.sum() == pytest.approx(1 if total == total else math.nan, abs=1e-15, nan_ok=True)


def test_prior_by_hand():
    e = explain([3, 1, 0], [0, 2, 2], form="counts", prior=0.5)
    assert e.p == pytest.approx([3.5 / 5.5, 1.5 / 5.5, 0.5 / 5.5], rel=1e-15)
    assert e.kl_pq == pytest.approx((3.5 * math.log(7) + 1.5 * math.log(0.6) + 0.5 * math.log(0.2)) / 5.5, rel=1e-14)


def test_mappings_are_aligned_by_label():
    e = explain(Counter(cat=3, dog=1), {"dog": 2, "owl": 2}, form="counts")
    assert e.labels == ("cat", "dog", "owl")
    assert e.p.tolist() == [0.75, 0.25, 0]
    assert e.q.tolist() == [0, 0.5, 0.5]
    pandas = pytest.importorskip("pandas")
    again = explain(pandas.Series({"cat": 3, "dog": 1}), pandas.Series({"dog": 2, "owl": 2}), form="counts")
    assert again.to_dict() == e.to_dict()


@pytest.mark.parametrize("framework", [f for f in ALL if not f.compiled], ids=repr)
def test_every_framework_in_float32(framework):
    e = explain(framework.array(np.array([P], dtype=np.float32)), Q)  # one row of a batch is one distribution
    _, _, pq, _, _ = exact([mpmath.mpf(float(np.float32(x))) for x in P], [mpmath.mpf(x) for x in Q])
    assert close(e.kl_pq, mpmath.fsum(pq))


def test_half_precision_may_sum_to_nearly_one():
    p = np.array([0.34, 0.33, 0.34], dtype=np.float16)
    assert explain(p, p).given_p.total == pytest.approx(1.01, abs=1e-3)
    with pytest.raises(ValueError, match=r"p sums to 1\.01"):
        explain(p.astype(np.float64), p.astype(np.float64))


@pytest.mark.parametrize(
    ("p", "q", "options", "message"),
    [
        ([[0.5, 0.5], [0.1, 0.9]], [0.5, 0.5], {}, r"p has shape \(2, 2\), several distributions: explain takes one, so pick a row"),
        ([0.5, 0.5], [0.2, 0.3, 0.5], {}, "p has 2 and q has 3 categories"),
        ([1.5, -0.5], [0.5, 0.5], {}, "p holds -0.5 at category 1"),
        ([0.5, 0.5], [0.5, 0.5], {"labels": ["a"]}, "labels has 1 entry for 2 categories"),
        ({"a": 1}, {"a": 1}, {"labels": ["a"]}, "p and q carry labels of their own"),
        ([0.5, 0.5], [0.5, 0.5], {"form": "prob"}, "form is 'prob'"),
        ([0.5, 0.5], [0.5, 0.5], {"base": 1}, "base is 1"),
        ([0.5, [0.5]], [0.5, 0.5], {}, "p cannot be read as an array of numbers"),
    ],
)
def test_value_errors(p, q, options, message):
    with pytest.raises(ValueError, match=message):
        explain(p, q, **options)


def test_type_errors():
    with pytest.raises(TypeError, match="labels is the string 'ab'"):
        explain([0.5, 0.5], [0.5, 0.5], labels="ab")
    with pytest.raises(TypeError, match="p has labels and q"):
        explain({"a": 1.0}, [1.0])


@pytest.mark.parametrize(
    ("p", "q", "summary"),
    [
        ([0.5, 0.5, 0], [0.1, 0.4, 0.5], "88% of KL(P‖Q) comes from 'cat', which P gives 0.5 and Q 0.1."),
        (P, Q, "'cat', which P gives 0.5 and Q 0.1, adds 0.805 nats, more than all of KL(P‖Q): negative terms take 0.27 back."),
        ([0.5, 0.5, 0], [0.5, 0.5, 0], "P and Q are the same distribution: every log ratio is 0."),
        ([1, 0, 0], [1, 0, 0], "P and Q are the same distribution: every log ratio is 0."),
        ([0.5, 0.5, 0], [1, 0, 0], "KL(P‖Q) is infinite, because of 'dog', which P gives 0.5 and Q 0. If a 0 only"),
        ([0.5, 0.2, 0.3], [1, 0, 0], "KL(P‖Q) is infinite, because of 'owl', which P gives 0.3 and Q 0 (and of 1 other category like it)."),
        ([1, 0, 0], [0.5, 0.5, 0], "100% of KL(P‖Q) comes from 'cat', which P gives 1 and Q 0.5. KL(Q‖P) is infinite, because of 'dog'"),
        ([math.nan, 0.5, 0.5], [0.5, 0.5, 0], "P holds NaN, so the totals are NaN"),
    ],
)
def test_summary(p, q, summary):
    found = explain(p, q, labels=["cat", "dog", "owl"]).summary
    assert found.startswith(summary), found


def test_summary_without_labels_and_without_a_leader():
    assert explain([0.5, 0.5, 0], [0.1, 0.4, 0.5]).summary.startswith("88% of KL(P‖Q) comes from category 0,")
    p = np.r_[np.full(50, 0.02), np.zeros(50)]
    assert explain(p, np.full(100, 0.01)).summary.startswith("No category dominates: the largest term, 2% of KL(P‖Q)")


def test_json_is_valid_and_every_number_reads_back():
    e = explain([0.5, 0.5, 0, 0], [1, 0, 0, 0], labels=["a", "b", "c", "d"])
    d = json.loads(json.dumps(e.to_dict(), allow_nan=False))
    assert d == e.to_dict()
    assert list(d) == [
        "schema", "unit", "base", "kl_pq", "kl_qp", "js", "entropy_p", "entropy_q", "cross_entropy_pq", "cross_entropy_qp",
        "given", "summary", "categories",
    ]  # fmt: skip
    assert d["schema"] == SCHEMA == "kullback.explain/1"
    assert (d["kl_pq"], d["base"], d["unit"]) == ("inf", math.e, "nats")
    assert d["kl_qp"] == pytest.approx(math.log(2))
    assert d["given"]["p"] == {"form": "probs", "sum": 1.0, "note": "P was given as probabilities, which sum to 1."}
    assert d["categories"][1] == {"label": "b", "p": 0.5, "q": 0.0, "log_ratio": "inf", "term_pq": "inf", "term_qp": 0.0}
    assert d["categories"][2] == {"label": "c", "p": 0.0, "q": 0.0, "log_ratio": "nan", "term_pq": 0.0, "term_qp": 0.0}
    assert float(d["kl_pq"]) == e.kl_pq


def test_text_shows_each_term_with_its_sign():
    lines = str(explain(P, Q, labels=["cat", "dog", "owl"])).splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.startswith(("cat", "dog", "owl", "sum"))}
    # By hand: ln 5 = 1.6094, half of it 0.8047; 0.8047/0.5352 = 150%.
    assert rows["cat"][1:7] == ["0.5000", "0.1000", "+1.6094", "+0.8047", "150%", "-0.1609"]
    assert rows["dog"][1:7] == ["0.3000", "0.4000", "-0.2877", "-0.0863", "-16%", "+0.1151"]
    assert rows["sum"][1:] == ["1.0000", "1.0000", "0.5352", "100%", "0.4123"]
    assert "█" in rows["cat"][7]
    assert set(rows["dog"][7]) == {"▒"}
    assert len(rows["owl"][7]) > len(rows["dog"][7])
    assert any(line.startswith("KL(P‖Q)  0.5351561881 nats") for line in lines)
    assert any("negative where p < q" in line for line in lines)
    assert not any("negative" in line for line in str(explain([0.5, 0.5], [0.5, 0.5])).splitlines())
    assert "log₂(p/q)" in str(explain(P, Q, base=2))


def test_large_k_shows_the_largest_and_the_sums_of_the_rest():
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(1000), 2)
    e = explain(p, q)
    table = sheet(e)
    order = np.argsort(-np.abs(p * np.log(p / q)))
    assert [row.cells[0] for row in table.rows] == [str(i) for i in order[:20]]
    assert table.rest is not None
    assert table.rest.cells[0] == "980 more"
    assert float(table.rest.cells[1]) == pytest.approx(p[order[20:]].sum(), abs=1e-4)
    assert float(table.rest.cells[4]) == pytest.approx((p * np.log(p / q))[order[20:]].sum(), abs=1e-4)
    assert float(table.total.cells[4]) == pytest.approx(scipy.stats.entropy(p, q), abs=1e-4)
    assert sheet(e, None).rest is None
    assert len(sheet(e, None).rows) == 1000
    assert "20 largest of 1,000" in str(e)
    assert len(e.to_dict()["categories"]) == 1000
    assert len(str(e).splitlines()) < 45


def test_small_tables_keep_the_order_given():
    assert [row.cells[0] for row in sheet(explain(Q, P, labels=["x", "y", "z"])).rows] == ["x", "y", "z"]


def test_labels_cannot_break_the_text():
    text = to_text(explain([0.5, 0.5], [0.9, 0.1], labels=["\x1b[31mred\n", "日本"]))
    assert "\x1b" not in text
    assert r"\x1b[31mred\n" in text
    lines = [line for line in text.splitlines() if "0.5000" in line]
    # 日本 takes four columns, so its line has two characters less before the same cell.
    assert lines[0].index("0.5000") - lines[1].index("0.5000") == 2


class _Tags(HTMLParser):
    VOID = ("br", "hr", "img")

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text, self.attributes = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_html_is_well_formed_escaped_and_loads_nothing():
    evil = '<script>alert("x")</script>&\''
    html = explain([0.5, 0.5, 0], [0.1, 0.4, 0.5], labels=[evil, "dog", "owl"])._repr_html_()
    page = _Tags()
    page.feed(html)
    page.close()
    assert page.open == []
    assert set(page.seen) == {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert evil in page.text
    assert {name for name, _ in page.attributes} == {"style"}
    assert "url(" not in html
    assert "http" not in html
    # Readable in light and dark: text takes the page's colour, nothing sets black or white.
    styles = " ".join(value for _, value in page.attributes)
    assert "color:inherit" in styles
    assert not any(word in styles for word in ("#000", "#fff", "black", "white;", ":white"))
    assert "0.1609" in " ".join(page.text)
    widths = [float(v.split("width:")[1].split("%")[0]) for _, v in page.attributes if "%;width:" in v]
    assert all(0 < w <= 100 for w in widths)
    assert len(widths) == 2


def test_html_of_infinite_nan_and_identical():
    for p, q in (([0.5, 0.5], [1, 0]), ([0, 1], [1, 0]), ([math.nan, 1], [0.5, 0.5]), ([0.5, 0.5], [0.5, 0.5]), ([1.0], [1.0])):
        e = explain(p, q)
        page = _Tags()
        page.feed(e._repr_html_())
        assert page.open == []
        assert str(e)
        json.dumps(e.to_dict(), allow_nan=False)


def test_the_record_is_frozen():
    e = explain(P, Q)
    with pytest.raises(FrozenInstanceError):
        e.kl_pq = 0.0
    with pytest.raises(ValueError, match="read-only"):
        e.p[0] = 1.0
    assert repr(e) == "<Explanation of 3 categories: KL(P‖Q) = 0.535156, KL(Q‖P) = 0.412274 nats>"
