"""Calls in the data flow: which function is meant, what its arguments are, what comes out.

Known operations are in `operations`; this module finds them through aliases, methods, partials, modules and the file's own functions.
"""

from __future__ import annotations

import ast
from typing import Any

from . import catalog
from .catalog import APIS, Api
from .events import Arguments, Bound, Compiled, Created, KlCall, Local, Operation, Place
from .events import Made as MadeEvent
from .operations import transfer
from .values import (
    CLASS, CONSTANT, DENSITY, FUNCTION, HARD, INSTANCE, KL, LOG_PROBS, LOGITS, METHOD, MODULE, NUMBERS, OBJECT, PARTIAL, PROBS, ROWS, SAMPLES, SCALAR,
    SIGMOID, TERMS, TUPLE, UNKNOWN, Divergence, Made, Value, constant, role_of,
)  # fmt: skip

_ACTIVATIONS = {"softmax": PROBS, "log_softmax": LOG_PROBS, "sigmoid": SIGMOID, "linear": LOGITS, "": LOGITS}


_SAME_OBJECT = frozenset({"to", "cuda", "cpu", "eval", "train", "half", "float", "double", "bfloat16", "requires_grad_", "expand"})


class Calls:
    """Mixed into the flow; `of_Call` is its entry."""

    scopes: tuple[Any, ...]
    place: Place

    def __init__(self) -> None:
        self.events: dict[tuple[str, int], Any] = {}
        self.recording = False
        self.texts: dict[int, str] = {}
        self.kept: list[ast.AST] = []
        self.layers: dict[int, Value] = {}  # Keras models built with add(): what their last layer gives

    # What the other halves of the flow provide.
    def value(self, node: ast.expr) -> Value:
        raise NotImplementedError

    def key(self, value: Value, node: ast.expr | None) -> str:
        raise NotImplementedError

    def text(self, node: ast.AST) -> str:
        raise NotImplementedError

    def define(self, node: Any, owner: Any = None) -> Any:
        raise NotImplementedError

    def record(self, event: Any) -> None:
        if self.recording:
            self.events[(type(event).__name__, id(event.node))] = event

    def bound_key(self, node: ast.AST, name: str, value: Value, expression: ast.expr) -> None:
        if self.recording:
            self.events[("Bound", id(expression))] = Bound(expression, name, value, expression, self.place)

    def of_Call(self, node: ast.Call) -> Value:
        function = self.value(node.func)
        args = [self.value(a) for a in node.args]
        keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg is not None}
        unpacked = [self.value(k.value) for k in node.keywords if k.arg is None]
        is_open = bool(unpacked) or any(isinstance(a, ast.Starred) for a in node.args)
        found = self.call(
            node, function, list(node.args), args, {k.arg: k.value for k in node.keywords if k.arg is not None}, keywords, is_open
        )
        if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_") and not node.func.attr.startswith("_"):
            self._in_place(node.func.value, found)
        if not found.role and found.kind not in (CONSTANT, MODULE):
            role = function.role or _callee_role(node.func)
            if role and (found.kind in ("", *_ROLE_KINDS)):
                return found.having(role=role)
        return found

    def _in_place(self, receiver: ast.expr, result: Value) -> None:
        """x.fill_(...), x.data.scatter_(...): x is no longer what it was."""
        whole = receiver
        while isinstance(receiver, (ast.Attribute, ast.Subscript, ast.Call)):
            receiver = receiver.func if isinstance(receiver, ast.Call) else receiver.value
        if isinstance(receiver, ast.Name) and self.value(receiver).kind in NUMBERS:
            self.scopes[-1].set(receiver.id, result if whole is receiver else Value(role=result.role))

    def call(
        self,
        node: ast.Call,
        function: Value,
        nodes: list[ast.expr],
        args: list[Value],
        keyword_nodes: dict[str, ast.expr],
        keywords: dict[str, Value],
        is_open: bool,
    ) -> Value:
        if function.kind == PARTIAL:
            made: Made = function.data
            nodes = [*made.node.args[1:], *nodes]
            args = [*made.args, *args]
            keyword_nodes = {k.arg: k.value for k in made.node.keywords if k.arg} | keyword_nodes
            keywords = dict(made.keywords) | keywords
            is_open = is_open or any(k.arg is None for k in made.node.keywords)
            return self.call(node, made.inner or UNKNOWN, nodes, args, keyword_nodes, keywords, is_open)
        if function.kind == FUNCTION:
            self.record(Local(node, function.data, tuple(nodes), tuple(args), self.place))
            return self._local(function.data, args, keywords, is_open, bound=isinstance(node.func, ast.Attribute))
        if function.kind == CLASS:
            init = function.data.find("__init__")
            if init is not None and not isinstance(init, Value):
                self._local(init, args, keywords, is_open, bound=True)
            return Value(INSTANCE, data=function.data)
        if function.kind == INSTANCE:
            forward = function.data.find("forward") or function.data.find("call") or function.data.find("__call__")
            if forward is not None and not isinstance(forward, Value):
                return self._local(forward, args, keywords, is_open, bound=True)
            return Value(role=function.role)
        if function.kind == OBJECT:
            return self._object(node, function, nodes, args, keyword_nodes, keywords, is_open)
        if function.kind == METHOD:
            return self._method(node, function, nodes, args, keyword_nodes, keywords, is_open)
        if function.kind == MODULE:
            return self._named(node, function.data, nodes, args, keyword_nodes, keywords, is_open)
        if isinstance(node.func, ast.Name) and not function:
            return self._named(node, node.func.id, nodes, args, keyword_nodes, keywords, is_open)
        return UNKNOWN

    # The file's own functions.

    def _local(self, function: Any, args: list[Value], keywords: dict[str, Value], is_open: bool, *, bound: bool) -> Value:
        names = function.positional[1:] if function.owner is not None and bound and not function.static else function.positional
        given = dict(zip(names, args)) | {k: v for k, v in keywords.items() if k in function.names}
        for name in names:
            value = UNKNOWN if is_open else given.get(name)
            if value is not None:
                function.note(name, _given(value).having(role=role_of(name) or value.role))
        for name, value in keywords.items():
            if name in function.names and name not in names:
                function.note(name, value)
        returned: Value = function.returns or UNKNOWN
        # Keys name variables of the other function.
        return _crossing(returned).having(role=returned.role if returned.role not in ("p", "q") else "")

    # Other libraries' functions and classes.

    def _named(
        self,
        node: ast.Call,
        name: str,
        nodes: list[ast.expr],
        args: list[Value],
        keyword_nodes: dict[str, ast.expr],
        keywords: dict[str, Value],
        is_open: bool,
    ) -> Value:
        if name.endswith((".from_pretrained", ".from_config")):
            name = name.rsplit(".", 1)[0]
        api = APIS.get(name)
        if api is not None and not api.is_class:
            arguments = _arguments(api.parameters, nodes, args, keyword_nodes, keywords, is_open)
            return self._divergence(node, api, arguments, arguments, node)
        if api is not None:
            options = _arguments(api.made_with, nodes, args, keyword_nodes, keywords, is_open)
            self.record(MadeEvent(node, api, options, self.place))
            return Value(OBJECT, data=Made(name, node, tuple(args), tuple(keywords.items())))
        library, operation = catalog.library_and_operation(name)
        if operation == "partial" and args:
            return Value(PARTIAL, data=Made("partial", node, tuple(args[1:]), tuple(keywords.items()), args[0]), role=args[0].role)
        if operation:
            return self.operate(node, library, operation, nodes, args, keyword_nodes, keywords, is_open)
        short = name.rsplit(".", 1)[-1]
        if name.startswith("scipy.stats.") and short in ("pdf", "pmf", "rvs"):
            return Value({"pdf": DENSITY, "pmf": PROBS, "rvs": SAMPLES}[short])
        if name in ("len", "range", "print", "str", "int"):
            return Value(of=f"len({self.key(args[0], nodes[0])})") if name == "len" and args else UNKNOWN
        if name.split(".")[0] in (
            "torch",
            "paddle",
            "keras",
            "tensorflow",
            "tf_keras",
            "scipy",
            "transformers",
            "numpyro",
            "pyro",
            "distrax",
            "tensorflow_probability",
        ):
            self.record(Created(node, name, tuple(args), keywords, self.place))
            return Value(OBJECT, data=Made(name, node, tuple(args), tuple(keywords.items())))
        return UNKNOWN

    def _divergence(self, node: ast.Call, api: Api, arguments: Arguments, options: Arguments, created: ast.Call) -> Value:
        p, q = arguments.value(api.p), arguments.value(api.q)
        if api.q not in arguments.nodes or (api.p not in arguments.nodes):
            return UNKNOWN  # entropy(p) alone
        summed = api.summed
        if api.torch_like:
            summed = {"none": TERMS, "mean": SCALAR, "sum": SCALAR, "batchmean": SCALAR}.get(str(reduction_of(options)), "")
        if api.distributions:
            summed = ROWS if _is_joint(p) or _is_joint(q) else TERMS if _is_factored(p) and _is_factored(q) else ""
        family = "distribution" if api.distributions else "categorical"
        averaged = api.torch_like and reduction_of(options) == "mean"
        keys = self.key(p, arguments.nodes[api.p]), self.key(q, arguments.nodes[api.q])
        found = Divergence(p, q, node, summed, api.name, family, averaged=averaged, p_key=keys[0], q_key=keys[1])
        self.record(KlCall(node, api, arguments, options, created, found, self.place))
        return Value(KL, data=found, detached=self.place.no_grad)

    def _object(
        self,
        node: ast.Call,
        function: Value,
        nodes: list[ast.expr],
        args: list[Value],
        keyword_nodes: dict[str, ast.expr],
        keywords: dict[str, Value],
        is_open: bool,
    ) -> Value:
        """A call on an object of another library's class: a loss, a layer, a model."""
        made: Made = function.data
        api = APIS.get(made.name)
        if api is not None:
            options = _arguments(
                api.made_with,
                list(made.node.args),
                list(made.args),
                {k.arg: k.value for k in made.node.keywords if k.arg},
                dict(made.keywords),
                any(k.arg is None for k in made.node.keywords),
            )
            arguments = _arguments(api.parameters, nodes, args, keyword_nodes, keywords, is_open)
            return self._divergence(node, api, arguments, options, made.node)
        short = made.name.rsplit(".", 1)[-1]
        if short in catalog.HARD_CLASSES:
            self._operation(node, "torch", "hard", nodes, args, keyword_nodes, keywords, is_open, Value(HARD))
            return Value(HARD)
        if short in ("Softmax", "LogSoftmax", "Softmax2d"):
            name = "log_softmax" if short == "LogSoftmax" else "softmax"
            library = made.name.split(".")[0]
            # The axis was given at creation.
            given = {k.arg: k.value for k in made.node.keywords if k.arg}
            axes = [*made.node.args[:1]] if made.node.args else [given[k] for k in ("dim", "axis") if k in given]
            whole = {**keyword_nodes, "dim": axes[0]} if axes else {**keyword_nodes, "dim": ast.Constant(None)}
            return self.operate(node, library, name, nodes, args, whole, keywords, is_open)
        output = self.output(made)
        return output.having(role=function.role)

    def output(self, made: Made) -> Value:
        """What a layer or model gives when called."""
        short = made.name.rsplit(".", 1)[-1]
        if short in catalog.LINEAR or short == "Dense":
            activation = made.keyword("activation")
            if activation is None and short in ("Dense", "Conv1D", "Conv2D") and made.name.split(".")[0] != "torch":
                activation = made.args[1] if short == "Dense" and len(made.args) > 1 else None
            if activation is None or (activation.kind == CONSTANT and activation.data is None):
                return Value(LOGITS)
            name = (
                activation.data
                if activation.kind == CONSTANT
                else str(activation.data or "").rsplit(".", 1)[-1]
                if activation.kind == MODULE
                else "?"
            )
            kind = _ACTIVATIONS.get(name, "")
            return Value(kind, softmax=kind == PROBS, positive=kind == PROBS)
        if short in ("Softmax", "LogSoftmax", "Sigmoid"):
            return Value({"Softmax": PROBS, "LogSoftmax": LOG_PROBS, "Sigmoid": SIGMOID}[short])
        if short == "Sequential":
            added = self.layers.get(id(made.node))
            if added is not None:
                return added
            last = made.args[-1] if made.args else None
            if last is not None and last.kind == TUPLE and last.data:
                last = last.data[-1]
            if last is not None and last.kind == OBJECT:
                return self.output(last.data)
        if short in ("Model", "Functional"):
            outputs = made.keyword("outputs") or (made.args[1] if len(made.args) > 1 else None)
            if outputs is not None and outputs.kind in (LOGITS, PROBS, SIGMOID, LOG_PROBS):
                return outputs
        if made.name.startswith("transformers.") and "For" in short:
            return Value(OBJECT, data=Made("transformers.ModelOutput", made.node))
        if short == "gaussian_kde":
            return Value(DENSITY)
        return UNKNOWN

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

    def _method(
        self,
        node: ast.Call,
        function: Value,
        nodes: list[ast.expr],
        args: list[Value],
        keyword_nodes: dict[str, ast.expr],
        keywords: dict[str, Value],
        is_open: bool,
    ) -> Value:
        receiver, name = function.data
        if receiver.kind == INSTANCE:
            return receiver if name in _SAME_OBJECT else Value(role=receiver.role)
        if receiver.kind == OBJECT:
            return self._method_of_object(node, receiver, name, nodes, args, keyword_nodes, keywords, is_open)
        if name == "kl_divergence" and len(args) == 1 and isinstance(node.func, ast.Attribute):
            api = APIS["torch.distributions.kl_divergence"]
            pair = Arguments({"p": node.func.value, "q": nodes[0]}, {"p": receiver, "q": args[0]})
            return self._divergence(node, api, pair, pair, node)
        if name == "log_prob":
            return Value(role=receiver.role)
        operation = catalog.METHODS.get(name, "")
        if name in ("log", "exp", "abs", "relu", "sigmoid") and (nodes or keyword_nodes):
            operation = ""  # logger.log(...), and the like
        if operation and isinstance(node.func, ast.Attribute):
            found = self.operate(
                node,
                "torch" if name in ("softmax", "log_softmax") else "",
                operation,
                [node.func.value, *nodes],
                [receiver, *args],
                keyword_nodes,
                keywords,
                is_open,
                method=True,
            )
            return found if found.role or not receiver.role or found.kind in (KL, CONSTANT) else found.having(role=receiver.role)
        return Value(role=receiver.role if name not in ("item",) else "")

    def _method_of_object(
        self,
        node: ast.Call,
        receiver: Value,
        name: str,
        nodes: list[ast.expr],
        args: list[Value],
        keyword_nodes: dict[str, ast.expr],
        keywords: dict[str, Value],
        is_open: bool,
    ) -> Value:
        made: Made = receiver.data
        short = made.name.rsplit(".", 1)[-1]
        if name in _SAME_OBJECT:
            return receiver
        if name == "kl_divergence" and len(args) == 1 and isinstance(node.func, ast.Attribute):
            api = APIS["torch.distributions.kl_divergence"]
            pair = Arguments({"p": node.func.value, "q": nodes[0]}, {"p": receiver, "q": args[0]})
            return self._divergence(node, api, pair, pair, node)
        if made.name.startswith("scipy.stats."):
            return Value({"pdf": DENSITY, "pmf": PROBS, "rvs": SAMPLES, "evaluate": DENSITY}.get(name, ""))
        if made.name.startswith(catalog.DISTRIBUTION_MODULES):
            if name in ("sample", "rsample"):
                return Value(SAMPLES, role="")
            return Value(role=receiver.role)
        if short == "Sequential" and name == "add" and args:
            last = args[0]
            self.layers[id(made.node)] = self.output(last.data) if last.kind == OBJECT else UNKNOWN
            return UNKNOWN
        if name == "compile" and ("loss" in keywords or len(nodes) > 1):
            loss, value = (keyword_nodes["loss"], keywords["loss"]) if "loss" in keywords else (nodes[1], args[1])
            self.record(Compiled(node, loss, value, self.output(made), self.place))
            return UNKNOWN
        if made.name.startswith("transformers.") and "For" in short and name == "forward":
            return self.output(made).having(role=receiver.role)
        return Value(role=receiver.role)

    # Operations.

    def operate(
        self,
        node: ast.Call,
        library: str,
        operation: str,
        nodes: list[ast.expr],
        args: list[Value],
        keyword_nodes: dict[str, ast.expr],
        keywords: dict[str, Value],
        is_open: bool,
        *,
        method: bool = False,
    ) -> Value:
        # softmax(input=x), sum(a=x): the operand by keyword.
        if not args:
            for name in ("input", "x", "a", "logits", "tensor", "input_tensor"):
                if name in keywords:
                    nodes, args = [keyword_nodes[name]], [keywords[name]]
                    break
            else:
                return UNKNOWN
        result = transfer(self, node, operation, nodes, args, keyword_nodes, keywords)
        self._operation(node, library, operation, nodes, args, keyword_nodes, keywords, is_open, result, method)
        return result

    def _operation(
        self,
        node: ast.Call,
        library: str,
        operation: str,
        nodes: list[ast.expr],
        args: list[Value],
        keyword_nodes: dict[str, ast.expr],
        keywords: dict[str, Value],
        is_open: bool,
        result: Value,
        method: bool = False,
    ) -> None:
        if self.recording:
            self.record(
                Operation(node, library, operation, tuple(nodes), tuple(args), keyword_nodes, result, self.place, is_open, method, keywords)
            )


_ROLE_KINDS = (LOGITS, LOG_PROBS, PROBS, OBJECT, TUPLE, SAMPLES)


def _crossing(value: Value) -> Value:
    """Leaving or entering a function, where sources name other variables."""
    data = tuple(map(_crossing, value.data)) if value.kind == TUPLE else value.data
    return value.having(of="", exp_of="", log_of="", mixture=(), masked=("", ""), data=data)


def _given(value: Value) -> Value:
    """What a helper may know of its argument: that it once gets a softmax, or a test's random numbers, is no fault of its own."""
    if value.kind == TUPLE:
        return value.having(data=tuple(map(_given, value.data)))
    return Value() if value.kind == SAMPLES else _crossing(value).having(softmax=False)


def _callee_role(function: ast.expr) -> str:
    """teacher_model(x), self.teacher(x): what comes out is the teacher's."""
    name = function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    role = role_of(name)
    return role if role not in ("p", "q") else ""


def _arguments(
    parameters: tuple[str, ...],
    nodes: list[ast.expr],
    args: list[Value],
    keyword_nodes: dict[str, ast.expr],
    keywords: dict[str, Value],
    is_open: bool,
) -> Arguments:
    if any(isinstance(n, ast.Starred) for n in nodes):
        nodes, args = [], []
    return Arguments(dict(zip(parameters, nodes)) | keyword_nodes, dict(zip(parameters, args)) | keywords, is_open)


def reduction_of(options: Arguments) -> str | None:
    """PyTorch's reduction, legacy arguments included; None where it is not written out."""
    if options.open:
        return None
    legacy = [name for name in ("size_average", "reduce") if name in options.nodes]
    for name in legacy:
        value = options.value(name)
        if value.kind != CONSTANT:
            return None
    if legacy and not all(options.value(name).data is None for name in legacy):
        if options.value("reduce").data is False and "reduce" in legacy:
            return "none"
        return "sum" if "size_average" in legacy and options.value("size_average").data is False else "mean"
    if "reduction" not in options.nodes:
        return "mean"
    value = options.value("reduction")
    return value.data if value.kind == CONSTANT and isinstance(value.data, str) else None


def log_target_of(options: Arguments) -> bool | None:
    """Whether the target is read as log-probabilities; None where it is not written out."""
    if "log_target" not in options.nodes:
        return None if options.open else False
    value = options.value("log_target")
    return value.data if value.kind == CONSTANT and isinstance(value.data, bool) else None


def _is_joint(value: Value) -> bool:
    return value.kind == OBJECT and value.data.name.rsplit(".", 1)[-1] in catalog.JOINT


def _is_factored(value: Value) -> bool:
    return value.kind == OBJECT and value.data.name.rsplit(".", 1)[-1] in ("Normal", "Laplace", "LogNormal")


__all__ = ["Calls", "constant", "log_target_of", "reduction_of"]
