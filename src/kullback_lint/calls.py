"""Calls in the data flow: which function is meant, through aliases, methods, partials and the file's own functions and classes.

What known operations give is in `operations`, what other libraries' objects give in `objects`.
"""

from __future__ import annotations

import ast
from typing import Any

from . import catalog
from .call import Call
from .catalog import APIS
from .events import Created, Local
from .events import Made as MadeEvent
from .objects import SAME_OBJECT, Objects
from .values import (
    CLASS,
    CONSTANT,
    DENSITY,
    FUNCTION,
    INSTANCE,
    KL,
    LOG_PROBS,
    LOGITS,
    METHOD,
    MODULE,
    NUMBERS,
    OBJECT,
    PARTIAL,
    PROBS,
    SAMPLES,
    TUPLE,
    UNKNOWN,
    Made,
    Value,
    role_of,
)  # fmt: skip

_FOLLOWED = frozenset({"torch", "paddle", "keras", "tensorflow", "tf_keras", "scipy", "transformers", "numpyro", "pyro", "distrax", "flax",
                       "tensorflow_probability"})  # fmt: skip
_WITH_ROLES = ("", LOGITS, LOG_PROBS, PROBS, OBJECT, TUPLE, SAMPLES)


class Calls(Objects):
    """Mixed into the flow; `of_Call` is its entry."""

    def of_Call(self, node: ast.Call) -> Value:
        function = self.value(node.func)
        args = [self.value(a) for a in node.args]
        named = {k.arg: k.value for k in node.keywords if k.arg is not None}
        keywords = {name: self.value(value) for name, value in named.items()}
        unpacked = [self.value(k.value) for k in node.keywords if k.arg is None]
        is_open = bool(unpacked) or any(isinstance(a, ast.Starred) for a in node.args)
        found = self.call(Call(node, list(node.args), args, named, keywords, is_open), function)
        if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_") and not node.func.attr.startswith("_"):
            self._in_place(node.func.value, found)
        if not found.role and found.kind in _WITH_ROLES:
            role = function.role or _callee_role(node.func)
            return found.having(role=role) if role else found
        return found

    def _in_place(self, receiver: ast.expr, result: Value) -> None:
        """x.fill_(...), x.data.scatter_(...): x is no longer what it was."""
        whole = receiver
        while isinstance(receiver, (ast.Attribute, ast.Subscript, ast.Call)):
            receiver = receiver.func if isinstance(receiver, ast.Call) else receiver.value
        if isinstance(receiver, ast.Name) and self.value(receiver).kind in NUMBERS:
            self.scopes[-1].set(receiver.id, result if whole is receiver else Value(role=result.role))

    def call(self, c: Call, function: Value) -> Value:
        if function.kind == PARTIAL:
            return self.call(c.after(function.data), function.data.inner or UNKNOWN)
        if function.kind == FUNCTION:
            self.record(Local(c.node, function.data, tuple(c.nodes), tuple(c.args), self.place))
            return self._local(function.data, c, bound=isinstance(c.node.func, ast.Attribute))
        if function.kind == CLASS:
            init = function.data.find("__init__")
            if init is not None and not isinstance(init, Value):
                self._local(init, c, bound=True)
            return Value(INSTANCE, data=function.data)
        if function.kind == INSTANCE:
            forward = next((f for f in map(function.data.find, ("forward", "call", "__call__")) if f is not None), None)
            if forward is not None and not isinstance(forward, Value):
                return self._local(forward, c, bound=True)
            return Value(role=function.role)
        if function.kind == OBJECT:
            return self.call_object(c, function)
        if function.kind == METHOD:
            return self._method(c, *function.data)
        if function.kind == MODULE:
            return self._named(c, function.data)
        if function.kind in NUMBERS and isinstance(c.node.func, ast.Attribute) and c.node.func.attr == "values":
            return function  # of a Counter; of a Series it is no call
        if isinstance(c.node.func, ast.Name) and not function:
            return self._named(c, c.node.func.id)
        return UNKNOWN

    def _local(self, function: Any, c: Call, *, bound: bool) -> Value:
        """One of the file's own functions: it learns what it is given, and gives what it returned in the round before."""
        names = function.positional[1:] if function.owner is not None and bound and not function.static else function.positional
        given = dict(zip(names, c.args)) | {k: v for k, v in c.keywords.items() if k in function.names}
        for name in function.names:
            value = UNKNOWN if c.open else given.get(name)
            if value is not None:
                function.note(name, _given(value).having(role=role_of(name) or value.role))
        returned: Value = function.returns or UNKNOWN
        return _crossing(returned).having(role=returned.role if returned.role not in ("p", "q") else "")

    def _named(self, c: Call, name: str) -> Value:
        """A function or class of another library, by its full name."""
        if name.endswith((".from_pretrained", ".from_config")):
            name = name.rsplit(".", 1)[0]
        made = Made(name, c.node, tuple(c.args), tuple(c.keywords.items()))
        api = APIS.get(name)
        if api is not None and api.is_class:
            self.record(MadeEvent(c.node, api, c.by_name(api.made_with), self.place))
            return Value(OBJECT, data=made)
        if api is not None:
            arguments = c.by_name(api.parameters)
            return self.divergence(c.node, api, arguments, arguments, c.node)
        library, operation = catalog.library_and_operation(name)
        if operation == "partial" and c.args:
            whole = Made("partial", c.node, tuple(c.args[1:]), tuple(c.keywords.items()), c.first)
            return Value(PARTIAL, data=whole, role=c.first.role)
        if operation:
            return self.operate(c, library, operation)
        short = name.rsplit(".", 1)[-1]
        if name.startswith("scipy.stats.") and short in ("pdf", "pmf", "rvs"):
            return Value({"pdf": DENSITY, "pmf": PROBS, "rvs": SAMPLES}[short])
        if name == "len" and c.args:
            return Value(of=f"len({self.key(c.first, c.nodes[0])})")
        if name.split(".")[0] in _FOLLOWED:
            self.record(Created(c.node, name, tuple(c.args), c.keywords, self.place))
            return Value(OBJECT, data=made)
        return UNKNOWN

    def _method(self, c: Call, receiver: Value, name: str) -> Value:
        if receiver.kind == INSTANCE:
            return receiver if name in SAME_OBJECT else Value(role=receiver.role)
        if receiver.kind == OBJECT:
            return self.method_of_object(c, receiver, name)
        if name == "kl_divergence" and len(c.args) == 1 and isinstance(c.node.func, ast.Attribute):
            return self.between(c, receiver)
        operation = catalog.METHODS.get(name, "")
        if name in ("log", "exp", "abs", "relu", "sigmoid") and (c.nodes or c.keyword_nodes):
            operation = ""  # logger.log(...), and the like
        if operation and isinstance(c.node.func, ast.Attribute):
            library = "torch" if name in ("softmax", "log_softmax") else ""
            found = self.operate(c.with_receiver(c.node.func.value, receiver), library, operation, method=True)
            return found if found.role or not receiver.role or found.kind in (KL, CONSTANT) else found.having(role=receiver.role)
        return Value(role=receiver.role if name != "item" else "")


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
