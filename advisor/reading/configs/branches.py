"""Branches of a script that do not run as it is written: ``USE_LORA = False`` ... ``if USE_LORA:``."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping


def without_dead(tree: ast.Module) -> ast.Module:
    """The tree without what stands under a name that the script sets once, at its top, to True or False; what may change it is left alone."""
    switches = _switches(tree)
    if switches:
        tree.body = list(_running(tree.body, switches))
    return tree


def _switches(tree: ast.Module) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            found[target.id] = node.value.value
    stored: Counter[str] = Counter()
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store | ast.Del):
            stored[inner.id] += 1
        elif isinstance(inner, ast.arg):
            stored[inner.arg] += 1
        elif isinstance(inner, ast.Global):
            stored.update(inner.names * 2)
    return {name: value for name, value in found.items() if stored[name] == 1}


def _running(statements: Iterable[ast.stmt], switches: Mapping[str, bool]) -> Iterator[ast.stmt]:
    """The statements that run; only statements are walked, whose nesting the parser bounds."""
    for statement in statements:
        value = _value(statement.test, switches) if isinstance(statement, ast.If) else None
        if isinstance(statement, ast.If) and value is not None:
            yield from _running(statement.body if value else statement.orelse, switches)
            continue
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(statement, name, None)
            if isinstance(inner, list) and inner:
                setattr(statement, name, list(_running(inner, switches)) or [ast.copy_location(ast.Pass(), statement)])
        yield statement


def _value(test: ast.expr, switches: Mapping[str, bool]) -> bool | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and isinstance(test.operand, ast.Name):
        inner = switches.get(test.operand.id)
        return None if inner is None else not inner
    return switches.get(test.id) if isinstance(test, ast.Name) else None
