"""What pasted Python writes over a whole file: hooks that keep what they see, checkpoints without a place to go, a model twice, no device chosen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from advisor.reading.pattern import pattern

GRAPHLESS = pattern(r"\.(?:detach|item|cpu|numpy|tolist|data|argmax|argsort|size|shape|dim)\b|\b(?:float|int|len|str|accuracy_score|argmax)\(")


_SCALAR = pattern(r"loss|acc|metric|norm|score|\.(?:mean|sum|max|min)\(|\blr\b|time")
_TENSOR_LIKE = pattern(r"\.(?:detach|clone|data)\b")
_OFF = pattern(r"\.(?:item|cpu|numpy|tolist)\b|\b(?:float|int|len|str)\(|['\"]cpu['\"]")
_AUXILIARY = pattern(r"(?:text_?encoder|t5|clip|vae|autoencoder|teacher|embedder|captioner|pipe(?:line)?|scorer|feature_?extractor)", re.IGNORECASE)
_ON_CARD = pattern(r"\.to\([^)]*(?:cuda|device|rank)|\.cuda\(|device_map")
_WIDE = pattern(r"\.(?:float|double)\(\)|\.to\((?:dtype=)?torch\.float(?:32|64)\)|\.type\(torch\.float32\)")


_TRAINS = frozenset({"backward", "manual_backward", "step", "train", "fit"})
HANDS = 8  # names that a gradient goes through, one given to the next
MOST_HELPERS = 20  # frozen models of one script that are looked at


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


def widens(tree: ast.Module) -> Iterator[Found]:
    """A gradient, whole, in a wider dtype: ``p.grad.float()``, ``t.to(torch.float32)`` in a function that goes over gradients."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        given = {a.arg for a in node.args.args}
        of_gradients = {n for n in given if re.fullmatch(r"(?:d_?p|grads?|gradients?|g)", n)}
        held = {"grad"} if any(isinstance(n, ast.Attribute) and n.attr in ("grad", "main_grad") for n in ast.walk(node)) else set()
        if not of_gradients and not held:
            continue
        names = set(of_gradients)
        for _ in range(HANDS):  # names that a gradient is given to
            fresh = {
                t.id
                for inner in ast.walk(node)
                if isinstance(inner, ast.Assign) and _of_gradient(inner.value, names) and not _WIDE.search(ast.unparse(inner.value))
                for target in inner.targets
                for t in ast.walk(target)
                if isinstance(t, ast.Name)
            }
            if fresh <= names:
                break
            names |= fresh
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in ("float", "double", "to", "type"):
                text = ast.unparse(inner)
                if _WIDE.search(text[len(ast.unparse(inner.func.value)) :]) and _of_gradient(inner.func.value, names):
                    yield Found("widens-gradients", text, inner.lineno)


def _of_gradient(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is a gradient itself, not a number made of it."""
    while True:
        if isinstance(node, ast.Attribute):
            if node.attr in ("grad", "main_grad"):
                return True
            node = node.value
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("detach", "to_local", "data", "view", "flatten", "clone")
        ):
            node = node.func.value
        elif isinstance(node, ast.IfExp):
            return _of_gradient(node.body, names) or _of_gradient(node.orelse, names)
        else:
            return isinstance(node, ast.Name) and node.id in names


def left_on_card(tree: ast.Module) -> Iterator[Found]:
    """A frozen helper (text encoder, VAE, teacher) that one block loads onto the card for what it prepares, and that nothing takes away."""
    helpers: dict[ast.Assign, int] = {}
    for node, end in _helpers(tree):
        helpers.setdefault(node, end)
    if not helpers:
        return
    text = ast.unparse(tree)
    last = {n.id: n.lineno for n in sorted((n for n in ast.walk(tree) if isinstance(n, ast.Name)), key=lambda n: n.lineno)}
    for node, end in islice(helpers.items(), MOST_HELPERS):
        name = ast.unparse(node.targets[0])
        gone = rf"\bdel [^\n]*\b{name}\b|\b{name}\b(?:\.to\(['\"](?:cpu|meta)| ?= ?None)|\b{name}\.cpu\("
        if last[name] <= end and not re.search(gone, text):
            yield Found("left-on-card", ast.unparse(node.value), node.lineno)


def _helpers(tree: ast.Module) -> Iterator[tuple[ast.Assign, int]]:
    """Frozen helpers that a block loads onto the card, and the block's last line; the outer of two blocks comes first.

    A block that trains too, or that is the program (``if __name__ == "__main__"``), may need its helper to its end.
    """
    for block in (n for n in ast.walk(tree) if isinstance(n, ast.If | ast.With)):
        if any((isinstance(n, ast.Name) and n.id == "__name__") or (isinstance(n, ast.Call) and called(n) in _TRAINS) for n in ast.walk(block)):
            continue
        for node in (n for child in block.body for n in ast.walk(child)):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and _AUXILIARY.search(node.targets[0].id):
                value = ast.unparse(node.value)
                if "from_pretrained" in value and _ON_CARD.search(value):
                    yield node, block.end_lineno or node.lineno


def keeps_detached(tree: ast.Module) -> Iterator[Found]:
    """Tensors without a graph that a function adds to a list or dict which outlives it, still on the card."""
    text = ast.unparse(tree)
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
        if re.match(r"_?(?:do_|run_)?(?:test|valid|eval|val|infer|predict)", node.name):
            continue  # an evaluation's batches: of the evaluation as a whole
        if any("cache" in ast.unparse(d) for d in node.decorator_list) and _MADE_ON_CARD.search(ast.unparse(node)):
            yield Found("keeps-detached", f"@{ast.unparse(node.decorator_list[0])} of {node.name}", node.lineno)  # functools keeps what it returned
        given = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
        own = {t.id for n in ast.walk(node) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
        yield from _cached(node, given | own, text)
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            if called(call) not in ("append", "extend") or len(call.args) != 1 or not isinstance(call.func, ast.Attribute):
                continue
            root: ast.expr = call.func.value
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            value = ast.unparse(call.args[0])
            outlives = isinstance(root, ast.Name) and root.id in given and root.id not in own
            if not outlives or not _TENSOR_LIKE.search(value) or _OFF.search(value) or _SCALAR.search(value):
                continue
            if f"{ast.unparse(call.func.value)}.clear(" not in text:
                yield Found("keeps-detached", ast.unparse(call), call.lineno)


def _cached(node: ast.FunctionDef | ast.AsyncFunctionDef, own: set[str], text: str) -> Iterator[Found]:
    """Tensors put under a key into a dict that is neither the function's nor given to it, or is an attribute: it grows with its keys."""
    for assign in (n for n in ast.walk(node) if isinstance(n, ast.Assign)):
        target = assign.targets[0]
        if not isinstance(target, ast.Subscript) or isinstance(target.slice, ast.Slice | ast.Constant):
            continue
        holder, value = ast.unparse(target.value), ast.unparse(assign.value)
        if re.fullmatch(r"\w+", holder) and holder in own:
            continue
        if (
            _TENSOR_LIKE.search(value)
            and not _OFF.search(value)
            and not _SCALAR.search(value)
            and not re.search(rf"\b{re.escape(holder)}\.(?:clear|pop)\(", text)
        ):
            yield Found("keeps-detached", ast.unparse(assign), assign.lineno)


def kept_models(tree: ast.Module) -> Iterator[Found]:
    """Whole models, on the card, that a loop builds and adds to a list: each turn's stays beside the next."""
    for loop in (n for n in ast.walk(tree) if isinstance(n, ast.For | ast.While)):
        inner = [n for child in loop.body for n in ast.walk(child)]
        built = {
            t.id
            for n in inner
            if isinstance(n, ast.Assign) and (_ON_CARD.search(ast.unparse(n.value)) or re.search(r"Trainer\(|from_pretrained\(", ast.unparse(n.value)))
            for t in n.targets
            if isinstance(t, ast.Name)
        }
        for call in (n for n in inner if isinstance(n, ast.Call) and called(n) == "append" and len(n.args) == 1):
            if isinstance(call.args[0], ast.Name) and call.args[0].id in built and _WHOLE.search(call.args[0].id):
                yield Found("keeps-models", ast.unparse(call), call.lineno)


_WHOLE = pattern(r"^(?:\w*_)?(?:model|net|network|trainer|engine|learner|agent|policy|clf|classifier)\d?$")
_MADE_ON_CARD = pattern(r"device\s*=|\.cuda\(|\.to\([^)]*(?:cuda|device)")
_CAUGHT = pattern(r"RuntimeError|OutOfMemoryError|\bException\b|BaseException|OOM")
_RETRIES = frozenset({"fit", "train", "run", "main", "forward", "step", "train_step", "training_step", "train_one_epoch"})


def retries(tree: ast.Module) -> Iterator[Found]:
    """A failed try whose exception is kept, or whose next try runs inside the ``except``: its frames, and every tensor in them, stay alive.

    Python deletes the name after ``except ... as e``, not what else refers to the exception.
    """
    around = {t: f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for t in ast.walk(f) if isinstance(t, ast.Try)}
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Try)):
        tried = {ast.unparse(c.func) for child in node.body for c in ast.walk(child) if isinstance(c, ast.Call)}
        tried |= {around[node], f"self.{around[node]}"} if node in around else set()
        for handler in node.handlers:
            kind = ast.unparse(handler.type) if handler.type is not None else ""
            if not _CAUGHT.search(kind) and handler.type is not None:
                continue
            inside = [n for child in handler.body for n in ast.walk(child)]
            kept = next((n for n in inside if handler.name and _keeps(n, handler.name)), None)
            again = next(
                (n for n in inside if isinstance(n, ast.Call) and ast.unparse(n.func) in tried and (called(n) in _RETRIES or _own_function(n, tree))), None
            )
            found = kept or again
            if found is not None:
                yield Found("keeps-exception" if found is kept else "retries-in-except", ast.unparse(found), getattr(found, "lineno", handler.lineno))


def _keeps(node: ast.AST, name: str) -> bool:
    """Whether a statement binds the exception itself to something that outlives the handler."""
    if isinstance(node, ast.Call) and called(node) in ("append", "add", "put"):
        return any(isinstance(a, ast.Name) and a.id == name for a in node.args)
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == name


def _own_function(call: ast.Call, tree: ast.Module) -> bool:
    return any(isinstance(n, ast.FunctionDef) and n.name == called(call) for n in ast.walk(tree))


_ENABLES = frozenset({"gradient_checkpointing_enable", "enable_gradient_checkpointing", "_set_gradient_checkpointing"})


def turned_off(tree: ast.Module) -> Iterator[Found]:
    """Checkpointing is enabled on a module that is then put into evaluation mode and trained: transformers and diffusers ask ``self.training`` too.

    ``if self.gradient_checkpointing and self.training`` (transformers modeling_layers.py GradientCheckpointingLayer), ``if torch.is_grad_enabled()
    and self.gradient_checkpointing`` (diffusers since 0.32; ``self.training and`` before).
    """
    calls = sorted((n for n in ast.walk(tree) if isinstance(n, ast.Call)), key=lambda c: (c.lineno, c.col_offset))
    on = {ast.unparse(c.func.value) for c in calls if called(c) in _ENABLES and isinstance(c.func, ast.Attribute)}
    if not on:
        return
    yield from _evaluates_where(tree, on)
    if not any(called(c) in _TRAINS for c in calls):
        return
    modes: dict[str, ast.Call] = {}
    for call in calls:
        if isinstance(call.func, ast.Attribute) and called(call) in ("eval", "train") and not (call.args and ast.unparse(call.args[0]) == "True"):
            modes[ast.unparse(call.func.value)] = call
    for owner, call in modes.items():
        if called(call) == "eval" and any(name == owner or name.startswith(f"{owner}.") for name in on):
            yield Found("checkpoints-in-eval", ast.unparse(call), call.lineno)
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Assign)):
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and target.attr == "gradient_checkpointing" and ast.unparse(node.value) == "False":
            yield Found("checkpointing-unset", ast.unparse(node), node.lineno)


def _evaluates_where(tree: ast.Module, on: set[str]) -> Iterator[Found]:
    """A switch that puts a checkpointed module into evaluation mode, where its other branch trains it: ``if args.disable_x: x.eval() else: x.train()``."""
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.If) and isinstance(n.test, ast.Attribute | ast.Name)):
        chosen, other = _modes(node.body), _modes(node.orelse)
        for owner in on & chosen.keys() & other.keys():
            if chosen[owner][0] == "eval" and other[owner][0] == "train":
                yield Found("evaluates-where", f"{ast.unparse(node.test)}: {ast.unparse(chosen[owner][1])}", chosen[owner][1].lineno)


def _modes(branch: list[ast.stmt]) -> dict[str, tuple[str, ast.Call]]:
    """Owner of each ``x.eval()`` or ``x.train()`` of a branch, with the call."""
    calls = (c for n in branch for c in ast.walk(n) if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute) and not c.args)
    return {ast.unparse(c.func.value): (called(c), c) for c in calls if called(c) in ("eval", "train") and isinstance(c.func, ast.Attribute)}
