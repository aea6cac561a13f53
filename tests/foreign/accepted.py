"""Differences from other libraries that we keep: the beginning of the test's name, and the reason. Each of these tests must fail."""

_CATEGORIES = "SciPy broadcasts along the axis of categories. We refuse sizes that differ, because that is almost always a mistake."
_CONCENTRATION = "The test draws negative concentrations. No von Mises distribution has these: we give NaN, and distrax gives a number."
_BIJECTORS = (
    "distrax compares what the two bijectors trace to, here TFP's Identity and a lambda. Ours are equal if they have the same class and "
    "parameters, which needs no call of the user's functions."
)
_NO_FORM = "distrax raises ValueError for a pair that does not match. We raise NoClosedForm, as for every pair without a closed form."

_ENTROPY = "scipy.stats/tests/test_entropy.py::TestEntropy::test_"
_DISTRAX = "distrax/_src/distributions/"

ACCEPTED = {
    _ENTROPY + "entropy_broadcasting": _CATEGORIES,
    _ENTROPY + "entropy_raises_value_error": "Both raise ValueError; the test compares SciPy's sentence.",
    _ENTROPY + "entropy_shape_mismatch": "Both raise ValueError; the test compares SciPy's sentence.",
    _ENTROPY + "input_validation": "Both raise ValueError for a base below 0; the test compares SciPy's sentence.",
    _DISTRAX + "von_mises_test.py::VonMisesTest::test_with_two_distributions": _CONCENTRATION,
    _DISTRAX + "transformed_test.py::TransformedTest::test_kl_divergence_kl": _BIJECTORS,
    _DISTRAX + "transformed_test.py::TransformedTest::test_kl_divergence_raises_on_event_shape": _NO_FORM,
    _DISTRAX + "joint_test.py::JointTest::test_raise_on_incompatible_distributions_kl": _NO_FORM,
    _DISTRAX + "categorical_test.py::CategoricalTest::test_kl_grad_-inf logits both": (
        "Q has the logit -inf where P has -1000, a probability that is too small for a float and not 0. The KL is inf; distrax gives 2.7."
    ),
}
