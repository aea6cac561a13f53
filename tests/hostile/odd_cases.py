"""Calls with arguments of the wrong kind: types, dtypes, layouts and options that nobody can compute with.

Each must end in one of our own sentences. None may end in a sentence of an interpreter or a framework, in a number, or in a crash.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from outcome import Outcome, failure, is_ours, of_exception

import kullback as kb
from kullback import losses

Case = dict[str, Any]

_P = [0.5, 0.3, 0.2]


def _torch(make: Callable[[Any], Any]) -> Callable[[], Any]:
    def made() -> Any:
        import torch

        return make(torch)

    return made


def _numbers(dtype: Any) -> Callable[[], Any]:
    return lambda: np.zeros(3, dtype)


# Arguments that are not arrays of real numbers.
THINGS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "text": lambda: "0.5,0.5",
    "bytes": lambda: b"12",
    "list of texts": lambda: ["a", "b", "c"],
    "ragged": lambda: [[0.5, 0.5], [1.0]],
    "empty list": lambda: [],
    "list of None": lambda: [None, 0.5, 0.5],
    "set": lambda: {0.5, 0.3, 0.2},
    "generator": lambda: (x for x in _P),
    "function": lambda: len,
    "type": lambda: float,
    "module": lambda: math,
    "dict in a list": lambda: [{"a": 1}],
    "object array": lambda: np.array([0.5, 0.5, None], dtype=object),
    "complex": lambda: np.array([0.5 + 0j, 0.3, 0.2]),
    "structured": _numbers([("a", "f4")]),
    "datetime": _numbers("M8[s]"),
    "timedelta": _numbers("m8[s]"),
    "texts": _numbers("U3"),
    "byte texts": _numbers("S3"),
    "void": _numbers("V4"),
    "longdouble": _numbers(np.longdouble),
    "masked": lambda: np.ma.masked_array(_P, [0, 0, 1]),
    "huge int": lambda: [10**400, 1, 1],
    "ellipsis": lambda: ...,
    "mapping of texts": lambda: {"a": "x"},
    "empty mapping": lambda: {},
    "number": lambda: 0.5,
    "NumPy number": lambda: np.float64(0.5),
    "bool": lambda: True,
    "Series of texts": lambda: __import__("pandas").Series(["a", "b"]),
    "DataFrame": lambda: __import__("pandas").DataFrame({"a": _P}),
    "SciPy sparse": lambda: __import__("scipy.sparse").sparse.csr_matrix([_P]),
    "torch sparse": _torch(lambda torch: torch.tensor([_P]).to_sparse()),
    "torch csr": _torch(lambda torch: torch.tensor([_P]).to_sparse_csr()),
    "torch float8": _torch(lambda torch: torch.tensor(_P).to(torch.float8_e4m3fn)),
    "torch complex": _torch(lambda torch: torch.tensor(_P, dtype=torch.complex64)),
    "torch nested": _torch(lambda torch: torch.nested.nested_tensor([torch.tensor(_P), torch.tensor([1.0])])),
    "torch quantized": _torch(lambda torch: torch.quantize_per_tensor(torch.tensor(_P), 0.1, 0, torch.quint8)),
    "list of tensors": _torch(lambda torch: [torch.tensor(_P), torch.tensor(_P)]),
    "torch without axes": _torch(lambda torch: torch.tensor(0.5)),
    "torch without categories": _torch(lambda torch: torch.zeros(2, 0)),
    "torch type": _torch(lambda torch: torch.Tensor),
    "torch module": _torch(lambda torch: torch.nn.Module()),
}  # fmt: skip
# A list of tensors is an array of numbers to NumPy and to torch.stack; both answers are right.
_MAY_WORK = {"list of tensors", "masked", "torch nested"}
SPOTS = ("p", "q", "both")
FUNCTIONS = (
    "kl",
    "js",
    "jeffreys",
    "renyi",
    "entropy",
    "cross_entropy",
    "rel_entr",
    "kl_div",
    "kl_loss",
    "token_terms",
    "policy_kl",
    "grpo",
    "compare",
)
# SciPy's elementwise functions take a single number, and so do our own; a policy's log-prob may be one.
_SINGLE = {"number", "NumPy number", "bool", "torch without axes", "torch without categories", "empty list"}

# name -> values that no function takes
OPTIONS: dict[str, list[Any]] = {
    "form": ["prob", "", None, 3, ("probs", "probs", "probs"), ("probs", None), {"a": 1}, b"probs", ["probs", "x"], object],
    "axis": [1.0, "0", None, True, 7, -9, (), (0, 0), [0, -1], (0, None), 10**30, np.array([0]), "x", math.nan, {0}],
    "keepdims": [],
    "weights": ["a", [1, 2, 3, 4, 5, 6, 7], object, {"a": 1}, [[[1.0]]], 1j, [None], [[1.0], [1.0, 2.0]], -1.0, math.nan],
    "reduction": ["median", "", None, 3, True, ["sum"], ("none",), {"a": 1}, b"sum"],
    "base": ["2", 0, 1, -2, math.nan, math.inf, True, [2], 1j, object, 0.5],
    "temperature": ["1", 0, -1, math.nan, math.inf, 1j, [1, 2, 3, 4, 5], [0.0], object, {"a": 1}, 10**400, None.__class__],
    "prior": ["1", -1, math.nan, math.inf, 1j, [0.1], object, 10**400, True],
    "check": ["yes", 3, [True], 2.5, object],
    "order": ["2", -1, math.nan, None, 1j, [2], True, object, -math.inf],
    "mix": ["0.5", 0, 1, -1, 2, math.nan, None, 1j, [0.5], True, object],
}  # fmt: skip
LOSS_OPTIONS: dict[str, list[Any]] = {
    "direction": ["backward", None, 3, ["forward"], {"a": 1}],
    "mix": [0.5, "a", -1, 2],
    "temperature": ["1", 0, -1, math.nan, math.inf, 1j, object, 10**400],
    "softcap": ["30", 0, -1, math.nan, math.inf, 1j, [30.0], True],
    "logit_scale": ["1", 0, -1, math.nan, math.inf, None, 1j, True],
    "weights": ["a", [1, 2, 3, 4, 5, 6, 7], object, -1.0, math.nan],
    "reduction": ["median", None, 3, ["sum"]],
    "valid": [0, -1, 99, 1.5, "2", True, [2], math.nan],
    "impl": ["fast", None, 3],
}


def generate(seed: int, _: str = "") -> Case:
    rng = random.Random(seed)
    function = rng.choice(FUNCTIONS)
    if function in ("kl", "js", "jeffreys", "renyi", "entropy", "cross_entropy") and rng.random() < 0.5:
        names = [n for n in OPTIONS if OPTIONS[n] and (n != "order" or function == "renyi") and (n != "mix" or function == "js")]
        name = rng.choice(names)
        return {"function": function, "option": name, "value": rng.randrange(len(OPTIONS[name])), "tensors": rng.random() < 0.3}
    if function == "kl_loss" and rng.random() < 0.6:
        name = rng.choice(list(LOSS_OPTIONS))
        return {"function": function, "option": name, "value": rng.randrange(len(LOSS_OPTIONS[name])), "tensors": rng.random() < 0.4}
    thing = rng.choice(list(THINGS))
    return {"function": function, "thing": thing, "spot": rng.choice(SPOTS), "tensors": rng.random() < 0.4}


def _call(case: Case) -> Any:
    function, x, y = case["function"], np.array([_P, _P]), np.array([[0.2, 0.3, 0.5]] * 2)
    if case.get("thing") in ("number", "NumPy number", "bool") and function == "grpo":
        function = "kl"
    options: Case = {}
    if case["tensors"]:
        import torch

        x, y = torch.tensor(x), torch.tensor(y)
    if "option" in case:
        table = LOSS_OPTIONS if case["function"] == "kl_loss" else OPTIONS
        options[case["option"]] = table[case["option"]][case["value"]]
        if case["option"] == "temperature" and case["function"] != "kl_loss":
            options["form"] = "logits"
    else:
        thing = THINGS[case["thing"]]
        x = thing() if case["spot"] in ("p", "both") else x
        y = thing() if case["spot"] in ("q", "both") else y
    if function == "kl_loss":
        return losses.kl_loss(student=x, teacher=y, **options)
    if function == "token_terms":
        return losses.token_terms(x, y, np.array([0, 1]))
    if function in ("policy_kl", "grpo"):
        return getattr(losses, function)(x, y)
    if function == "compare":
        return kb.compare(x, y)
    if function == "renyi":
        options.setdefault("order", 0.5)
    of_one = (x if case.get("spot") != "q" else y,)
    return getattr(kb, function)(*(of_one if function == "entropy" else (x, y)), **options)


def run(case: Case) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = _call(case)
    except Exception as error:
        wrong = is_ours(error)
        if wrong is None and case.get("thing") == "list of tensors" and "dtype object" in str(error):
            wrong = f"tensors are called objects: {error}"
        return failure(wrong) if wrong is not None else of_exception(error)
    if may_work(case):
        return Outcome("right")
    return failure(f"no error but {str(value)[:120]!r}")


def may_work(case: Case) -> bool:
    """May this argument be accepted? Some functions take a number or an empty list, and a list of tensors is an array."""
    thing, function = case.get("thing"), case["function"]
    if thing in _MAY_WORK:
        return True
    if thing in _SINGLE and function in ("rel_entr", "kl_div", "policy_kl", "grpo"):
        return True
    if thing is None:
        return False
    return bool(function == "compare" and thing == "DataFrame")


def smaller(case: Case) -> Iterator[Case]:
    if case["tensors"]:
        yield {**case, "tensors": False}
    if case.get("spot") == "both":
        yield {**case, "spot": "p"}
        yield {**case, "spot": "q"}


def command(case: Case) -> str:
    if "option" in case:
        value = (LOSS_OPTIONS if case["function"] == "kl_loss" else OPTIONS)[case["option"]][case["value"]]
        return f"{case['function']}(..., {case['option']}={value!r}){' of tensors' if case['tensors'] else ''}"
    return f"{case['function']} with {case['thing']} as {case['spot']}{', tensors beside it' if case['tensors'] else ''}"
