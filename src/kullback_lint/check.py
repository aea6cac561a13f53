"""One file's findings: parse, follow the values, ask every rule."""

from __future__ import annotations

import ast
import gc
import re
import warnings
from collections.abc import Sequence

from .flow import Flow
from .model import ERROR, Finding
from .rules import RULES
from .rules.base import Module, Report, Rule
from .source import Source

# Files without any of these words have nothing to say; most files are such. ("kl" within a word is "quickly" and "weekly".)
WORTH = re.compile(
    r"softmax|(?<![a-z])kl|kl(?![a-z])|kullback|entropy|rel_entr|jensen|log\d*\(|exp(?:m1)?\(|logvar|log_var|logits", re.IGNORECASE
)
_FAULT = "could not be checked"


class Unparsable(Exception):
    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line, self.column = line, column


def parse(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are not our business
            return ast.parse(text)
    except SyntaxError as error:
        raise Unparsable(str(error.msg), error.lineno or 1, max(error.offset or 1, 1)) from None
    except ValueError as error:
        raise Unparsable(str(error), 1, 1) from None
    except (RecursionError, MemoryError):
        raise Unparsable("nested too deeply for the parser", 1, 1) from None


def analyse(text: str, path: str) -> Module:
    """The parsed file and what the data flow saw in it."""
    tree = parse(text)
    module = Module(Source(text, path), tree)
    if WORTH.search(text):
        module.parents, bound = _survey(tree)
        module.events = Flow(tree, bound).run()
    return module


def check(text: str, path: str, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Findings of one Python source, in order, without those that comments silence."""
    collecting = gc.isenabled()
    gc.disable()  # trees are many small objects without cycles; looking for some takes a third of the time
    try:
        return _check(text, path, rules)
    finally:
        if collecting:
            gc.enable()


def _check(text: str, path: str, rules: Sequence[Rule]) -> list[Finding]:
    try:
        module = analyse(text, path)
    except Unparsable as error:
        return [unparsable(path, error)]
    except Exception as error:
        return [_fault(path, "the data flow", error)]
    found: dict[tuple[int, int, str], Finding] = {}
    faults: list[Finding] = []
    kinds = set(map(type, module.events))
    for rule in rules:
        if kinds.isdisjoint(rule.events):
            continue
        try:
            for report in rule.check(module):
                finding = _finding(module.source, rule, report)
                if not module.source.silences(rule.code, finding.line, finding.end_line):
                    found.setdefault((finding.line, finding.column, rule.code), finding)
        except Exception as error:
            faults.append(_fault(path, rule.code, error))
    return sorted([*faults, *found.values()], key=lambda f: f.place)


def _fault(path: str, where: str, error: Exception) -> Finding:
    """A fault of ours: the run goes on, the other rules are asked, and it is not hidden."""
    message = f"{_FAULT}: {where} failed ({type(error).__name__}: {error}), which is a fault of kullback; please report it"
    return Finding(path, 1, 1, "KL000", message, ERROR, 1, 2)


def is_fault(finding: Finding) -> bool:
    return finding.rule == "KL000" and finding.message.startswith(_FAULT)


def unparsable(path: str, error: Unparsable, cell: int | None = None) -> Finding:
    return Finding(path, error.line, error.column, "KL000", f"does not parse: {error}", ERROR, error.line, error.column + 1, cell)


def _finding(source: Source, rule: Rule, report: Report) -> Finding:
    node = report.node
    line, end = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    return Finding(
        source.path, line, source.column(line, node.col_offset) + 1, rule.code, report.message, rule.severity,  # type: ignore[attr-defined]
        end, source.column(end, node.end_col_offset) + 1, edits=report.edits,  # type: ignore[attr-defined]
    )  # fmt: skip


def _survey(tree: ast.Module) -> tuple[dict[ast.AST, ast.AST], set[str]]:
    """Each node's parent, and every name the file binds anywhere: those are not taken for what convention says.

    One loop for both, by hand: `ast.walk` would take as long as all rules together.
    """
    parents: dict[ast.AST, ast.AST] = {}
    bound: set[str] = set()
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is ast.Name:
            if type(node.ctx) is not ast.Load:  # type: ignore[attr-defined]
                bound.add(node.id)  # type: ignore[attr-defined]
            continue
        if kind is ast.Constant:
            continue
        if kind is ast.alias:
            bound.add((node.asname or node.name).split(".")[0])  # type: ignore[attr-defined]
        elif kind is ast.arg:
            bound.add(node.arg)  # type: ignore[attr-defined]
        elif kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            bound.add(node.name)  # type: ignore[attr-defined]
        for field in node._fields:
            child = getattr(node, field, None)
            if isinstance(child, list):
                for part in child:
                    if isinstance(part, ast.AST):
                        parents[part] = node
                        stack.append(part)
            elif isinstance(child, ast.AST):
                parents[child] = node
                stack.append(child)
    return parents, bound
