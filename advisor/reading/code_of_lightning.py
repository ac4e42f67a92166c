"""What a LightningModule's evaluation hooks do with tensors: Lightning runs them without a graph, and what they keep stays on the card.

lightning 2.6 pytorch/loops/utilities.py ``_no_grad_context``: validation, test and prediction loops run under ``torch.inference_mode`` or ``no_grad``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from advisor.reading.code_of_files import Found, called
from advisor.reading.pattern import pattern

_HOOK = pattern(r"^(?:on_)?(?:validation|test|predict)_(?:step|epoch_\w+|batch_\w+|step_end)$")
_LOOP = frozenset({"training_step", "configure_optimizers"})  # what every LightningModule that trains defines


def hooks_of(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The evaluation hooks of the LightningModules of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
            named = any(ast.unparse(base).endswith("LightningModule") for base in node.bases)
            if named or {method.name for method in methods} >= _LOOP:
                yield from (method for method in methods if _HOOK.match(method.name))


def kept(hook: ast.FunctionDef, is_tensor: Callable[[str], bool]) -> Iterator[Found]:
    """Tensors that a hook puts into a list of the module: one more for each batch until the epoch ends, or for good."""
    for node in ast.walk(hook):
        if not (isinstance(node, ast.Call) and called(node) == "append" and len(node.args) == 1 and isinstance(node.func, ast.Attribute)):
            continue
        if ast.unparse(node.func.value).startswith("self.") and is_tensor(ast.unparse(node.args[0])):
            yield Found("keeps-on-card", ast.unparse(node), node.lineno)
