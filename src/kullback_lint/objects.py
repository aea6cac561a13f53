"""Objects of other libraries in the data flow: losses, layers, models, distributions, and what their calls and methods give."""

from __future__ import annotations

import ast

from . import catalog
from .call import Call, creation, reduction_of
from .catalog import APIS, Api
from .events import Arguments, Compiled, KlCall
from .state import State
from .values import (
    CONSTANT,
    DENSITY,
    KL,
    LOG_PROBS,
    LOGITS,
    METHOD,
    MODULE,
    OBJECT,
    PROBS,
    ROWS,
    SAMPLES,
    SCALAR,
    SIGMOID,
    TERMS,
    TUPLE,
    UNKNOWN,
    Divergence,
    Made,
    Value,
)  # fmt: skip

_ACTIVATIONS = {"softmax": PROBS, "log_softmax": LOG_PROBS, "sigmoid": SIGMOID, "linear": LOGITS, "": LOGITS}
_SUMMED = {"none": TERMS, "mean": SCALAR, "sum": SCALAR, "batchmean": SCALAR}
# Methods that give the object back.
SAME_OBJECT = frozenset({"to", "cuda", "cpu", "eval", "train", "half", "float", "double", "bfloat16", "requires_grad_", "expand"})


class Objects(State):
    """Mixed into the flow."""

    def divergence(self, node: ast.Call, api: Api, arguments: Arguments, options: Arguments, created: ast.Call) -> Value:
        """A call of a KL."""
        if api.q not in arguments.nodes or api.p not in arguments.nodes:
            return UNKNOWN  # entropy(p) alone
        p, q = arguments.value(api.p), arguments.value(api.q)
        summed, averaged = api.summed, False
        if api.torch_like:
            reduction = reduction_of(options, api.reduction)
            summed, averaged = _SUMMED.get(str(reduction), ""), reduction == "mean"
        if api.distributions:
            summed = ROWS if _is_joint(p) or _is_joint(q) else TERMS if _is_factored(p) and _is_factored(q) else ""
        family = "distribution" if api.distributions else "categorical"
        keys = self.key(p, arguments.nodes[api.p]), self.key(q, arguments.nodes[api.q])
        found = Divergence(p, q, node, summed, api.name, family, averaged=averaged, p_key=keys[0], q_key=keys[1])
        self.record(KlCall(node, api, arguments, options, created, found, self.place))
        return Value(KL, data=found, detached=self.place.no_grad)

    def between(self, c: Call, receiver: Value) -> Value:
        """p.kl_divergence(q)."""
        assert isinstance(c.node.func, ast.Attribute)
        pair = Arguments({"p": c.node.func.value, "q": c.nodes[0]}, {"p": receiver, "q": c.args[0]})
        return self.divergence(c.node, APIS["torch.distributions.kl_divergence"], pair, pair, c.node)

    def call_object(self, c: Call, function: Value) -> Value:
        made: Made = function.data
        api = APIS.get(made.name)
        if api is not None:
            return self.divergence(c.node, api, c.by_name(api.parameters), creation(made).by_name(api.made_with), made.node)
        short = made.name.rsplit(".", 1)[-1]
        if short in catalog.HARD_CLASSES:
            return self.operate(c, "torch", "hard")
        if short in ("Softmax", "LogSoftmax", "Softmax2d"):
            # The axis was given at creation, or not at all, which is reported there.
            axis = creation(made).axis(position=0)
            known = {**c.keyword_nodes, "dim": ast.Constant(axis if isinstance(axis, int) else None)}
            settled = Call(c.node, c.nodes, c.args, known, c.keywords, c.open)
            return self.operate(settled, made.name.split(".")[0], "log_softmax" if short == "LogSoftmax" else "softmax")
        return self.output(made).having(role=function.role)

    def output(self, made: Made) -> Value:
        """What a layer or model gives when called."""
        short = made.name.rsplit(".", 1)[-1]
        if short in catalog.LINEAR or short == "Dense":
            return _activated(made, short)
        if short in ("Softmax", "LogSoftmax", "Sigmoid"):
            kind = {"Softmax": PROBS, "LogSoftmax": LOG_PROBS, "Sigmoid": SIGMOID}[short]
            return Value(kind, softmax=kind == PROBS, positive=kind == PROBS)
        if short == "Sequential":
            if id(made.node) in self.layers:
                return self.layers[id(made.node)]
            last = made.args[-1] if made.args else UNKNOWN
            if last.kind == TUPLE and last.data:
                last = last.data[-1]
            return self.output(last.data) if last.kind == OBJECT else UNKNOWN
        if short in ("Model", "Functional"):
            outputs = made.keyword("outputs") or (made.args[1] if len(made.args) > 1 else UNKNOWN)
            return outputs if outputs.kind in (LOGITS, PROBS, SIGMOID, LOG_PROBS) else UNKNOWN
        if made.name.startswith("transformers.") and "For" in short:
            return Value(OBJECT, data=Made("transformers.ModelOutput", made.node))
        return Value(DENSITY) if short == "gaussian_kde" else UNKNOWN

    def attribute_of_object(self, base: Value, name: str) -> Value:
        made: Made = base.data
        short = made.name.rsplit(".", 1)[-1]
        if made.name.startswith(catalog.DISTRIBUTION_MODULES) and short in ("Categorical", "OneHotCategorical"):
            if name == "probs":
                return Value(PROBS)
            if name == "logits" and made.name.startswith(("torch.", "pyro.")):
                return Value(LOG_PROBS)  # PyTorch normalises them
        if made.name == "transformers.ModelOutput" and name == "logits":
            return Value(LOGITS)
        return Value(METHOD, data=(base, name))

    def method_of_object(self, c: Call, receiver: Value, name: str) -> Value:
        made: Made = receiver.data
        short = made.name.rsplit(".", 1)[-1]
        if name in SAME_OBJECT:
            return receiver
        if name == "kl_divergence" and len(c.args) == 1:
            return self.between(c, receiver)
        if made.name.startswith("scipy.stats."):
            return Value({"pdf": DENSITY, "pmf": PROBS, "rvs": SAMPLES, "evaluate": DENSITY}.get(name, ""))
        if made.name.startswith(catalog.DISTRIBUTION_MODULES):
            return Value(SAMPLES) if name in ("sample", "rsample") else Value(role=receiver.role)
        if short == "Sequential" and name == "add" and c.args:
            self.layers[id(made.node)] = self.output(c.first.data) if c.first.kind == OBJECT else UNKNOWN
            return UNKNOWN
        if name == "compile" and ("loss" in c.keywords or len(c.nodes) > 1):
            loss, value = (c.keyword_nodes["loss"], c.keywords["loss"]) if "loss" in c.keywords else (c.nodes[1], c.args[1])
            self.record(Compiled(c.node, loss, value, self.output(made), self.place))
            return UNKNOWN
        if made.name.startswith("transformers.") and "For" in short and name == "forward":
            return self.output(made).having(role=receiver.role)
        return Value(role=receiver.role)


def _activated(made: Made, short: str) -> Value:
    activation = made.keyword("activation")
    if activation is None and short == "Dense" and len(made.args) > 1:
        activation = made.args[1]
    if activation is None or (activation.kind == CONSTANT and activation.data is None):
        return Value(LOGITS)
    name = activation.data if activation.kind == CONSTANT else str(activation.data).rsplit(".", 1)[-1] if activation.kind == MODULE else "?"
    kind = _ACTIVATIONS.get(name, "")
    return Value(kind, softmax=kind == PROBS, positive=kind == PROBS)


def _is_joint(value: Value) -> bool:
    return value.kind == OBJECT and value.data.name.rsplit(".", 1)[-1] in catalog.JOINT


def _is_factored(value: Value) -> bool:
    return value.kind == OBJECT and value.data.name.rsplit(".", 1)[-1] in ("Normal", "Laplace", "LogNormal")
