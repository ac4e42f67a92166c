"""What pasted Python writes over a whole file: hooks that keep what they see, checkpoints without a place to go, a model twice, no device chosen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from advisor.reading.pattern import pattern

GRAPHLESS = pattern(r"\.(?:detach|item|cpu|numpy|tolist|data|argmax|argsort|size|shape|dim)\b|\b(?:float|int|len|str|accuracy_score|argmax)\(")


class Found(NamedTuple):
    """What is written: ``what`` names the pattern, ``code`` the expression, ``line`` counts from 1."""

    what: str
    code: str
    line: int


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def hooks(tree: ast.Module) -> Iterator[Found]:
    """Forward hooks that store what they are given."""
    hooked = {ast.unparse(a) for n in ast.walk(tree) if isinstance(n, ast.Call) and called(n) == "register_forward_hook" for a in n.args}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or len(node.args.args) < 3:
            continue
        if not any(re.search(rf"\b{re.escape(node.name)}\b", h) for h in hooked) and not (hooked and node.name in ("hook", "fn", "hook_fn")):
            continue
        given = {a.arg for a in node.args.args[-2:]}
        for inner in ast.walk(node):
            value = inner.value if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Subscript | ast.Attribute) else None
            if isinstance(inner, ast.Call) and called(inner) == "append" and inner.args:
                value = inner.args[0]
            if value is not None and {n.id for n in ast.walk(value) if isinstance(n, ast.Name)} & given and not GRAPHLESS.search(ast.unparse(value)):
                yield Found("hook-keeps-graph", ast.unparse(inner), getattr(inner, "lineno", node.lineno))


def loads(tree: ast.Module) -> Iterator[Found]:
    """Checkpoints without a place to go, the same model loaded twice, processes that never choose a device."""
    loaded: dict[str, ast.Call] = {}
    text = ast.unparse(tree)
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        if ast.unparse(call.func) == "torch.load" and not any(k.arg == "map_location" for k in call.keywords) and len(call.args) < 2:
            yield Found("loads-where-saved", ast.unparse(call), call.lineno)
        named = ast.unparse(call.func)
        if named.endswith("Model.from_pretrained") or re.search(r"(?:ForCausalLM|ForConditionalGeneration|ForSequenceClassification)\.from_pretrained$", named):
            key = ast.unparse(call.args[0]) if call.args else ""
            if key and key in loaded and f"del {key}" not in text:
                yield Found("loads-twice", ast.unparse(call), call.lineno)
            loaded.setdefault(key, call)
    if (
        "init_process_group" in text
        and re.search(r"\.cuda\(\)|['\"]cuda(?::0)?['\"]", text)
        and not re.search(r"set_device|local_rank|LOCAL_RANK|device_ids", text)
    ):
        line = next((n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call) and called(n) == "init_process_group"), 1)
        yield Found("never-chooses-device", "init_process_group without torch.cuda.set_device", line)
