"""What pasted Python does with tensors, from its syntax tree: kept over a loop, carried from step to step, evaluated with a graph, moved too early.

The code is parsed, never run. A snippet that does not parse as a whole is parsed block by block. Each finding is a key ``code.<what>`` of the
evidence with the line it stands in: rules say what it means, this says only what is written.
"""

from __future__ import annotations

import ast
import contextlib
import re
import textwrap
import warnings
from collections.abc import Iterator

from advisor.reading import code_of_lightning
from advisor.reading.code_of_files import GRAPHLESS, Found, called, hooks, keeps_detached, kept_models, left_on_card, loads, retries, turned_off, widens
from advisor.reading.pattern import pattern

MOST = 400_000  # characters of one text that are parsed
DEPTH = 90  # levels of indentation or brackets: deeper code is no one's training script
_PYTHON = pattern(r"^[ \t]*(?:import |from \w[\w.]* import |def \w+\(|class \w+|for \w.* in .*:|with .*:|@\w|\w[\w.]* ?(?:\+=|=) ?\w)", re.MULTILINE)
_TELLING = pattern(
    r"\.append\(|\+=|\.backward\(|\.eval\(\)|torch\.load\(|FSDP\(|fully_shard\(|\.initialize\(|\.prepare\(|from_pretrained\(|init_process_group|hook\(|\.float\(\)|to\(torch\.float32|"
    r"@(?:functools\.)?(?:lru_)?cache\b|\bexcept\b[^\n]*(?:RuntimeError|OutOfMemory|Exception)|\.detach\(\)|checkpointing"
)
_OFF_CARD = pattern(r"\.(?:item|cpu|numpy|tolist|size|shape)\b|\b(?:float|int|len|str)\(|device=['\"]cpu")
_TENSOR = pattern(
    r"(?:^|_|\b)(?:loss|losses|logits?|outputs?|out|preds?|predictions?|feat\w*|hidden\w*|embed\w*|emb|scores?|probs?|z|y_hat|recon\w*|latents?|h)(?:_|\b|$)"
)
_MODEL = pattern(
    r"^(?:self\.)?(?:model|net|network|module|generator|discriminator|encoder|decoder|backbone|policy|actor|critic|unet|\w*_model|\w*_net|netG|netD)$"
)
_EVAL = pattern(r"^_?(?:do_|run_)?(?:test|valid\w*|eval\w*|val|infer\w*|predict\w*)(?:_|$)")
_LEFT_OUT = pattern(r"^[ \t]*(?:# ?)?(?:\.{3}|…)[ \t]*$", re.MULTILINE)
_WRAPS = frozenset({"FSDP", "FullyShardedDataParallel", "fully_shard", "initialize", "prepare"})
_NO_GRAPH = pattern(r"no_grad|inference_mode|set_grad_enabled\(False")


MOST_CARRIED = 60  # assignments of a loop that are looked at for a carried state: a real loop has a handful


def looks_like_code(text: str) -> bool:
    """Whether a text is worth parsing: not too large, with code that tells, and no traceback or log in it."""
    return len(text) <= MOST and _TELLING.search(text) is not None and _PYTHON.search(text) is not None and "Traceback (most" not in text


def code_facts(text: str) -> list[Found]:
    """The findings of a text, in order of lines; none where it is no Python."""
    out: list[Found] = []
    pieces = list(_trees(text))
    for tree, offset in pieces:
        try:
            out.extend(Found(what, code[:160], line + offset) for what, code, line in _of_tree(tree))
        except RecursionError:  # an expression nested deeper than Python itself writes it out again: what was found above it stays
            continue
    if len(pieces) > 1:  # what one block enables another may turn off
        whole = ast.Module([node for tree, offset in pieces for node in ast.increment_lineno(tree, offset).body], [])
        with contextlib.suppress(RecursionError):
            out.extend(Found(what, code[:160], line) for what, code, line in turned_off(whole))
    return sorted(set(out), key=lambda f: f.line)


def _trees(text: str) -> Iterator[tuple[ast.Module, int]]:
    whole = _parsed(text)
    if whole is not None:
        yield whole, 0
        return
    lines = text.split("\n")
    start = 0
    for number in range(1, len(lines) + 1):
        # a block ends where a line at the left margin follows
        if number == len(lines) or (lines[number].strip() and not lines[number][0].isspace() and not lines[number].startswith((")", "]", "}", "else", "elif"))):
            block = _parsed("\n".join(lines[start:number]))
            if block is not None:
                yield block, start
            start = number


def _parsed(text: str) -> ast.Module | None:
    whole = _LEFT_OUT.sub("", text)  # people put "..." for what they leave out, at any indentation
    for candidate in (text, textwrap.dedent(text), textwrap.dedent(whole)) if whole != text else (text, textwrap.dedent(text)):
        if max((len(line) - len(line.lstrip()) for line in candidate.split("\n")), default=0) > 4 * DEPTH:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def _of_tree(tree: ast.Module) -> Iterator[Found]:
    scopes: list[tuple[ast.AST, str, bool]] = [(tree, "", False)]
    quiet = list(code_of_lightning.hooks_of(tree))
    for hook in quiet:
        yield from code_of_lightning.kept(hook, lambda value: bool(_TENSOR.search(value)) and not _OFF_CARD.search(value))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scopes.append((node, node.name, node in quiet or any(_NO_GRAPH.search(ast.unparse(d)) for d in node.decorator_list)))
    for scope, name, graphless in scopes:
        yield from _of_scope(scope, name, graphless)
    yield from hooks(tree)
    yield from loads(tree)
    yield from widens(tree)
    yield from left_on_card(tree)
    yield from keeps_detached(tree)
    yield from retries(tree)
    yield from turned_off(tree)
    yield from kept_models(tree)


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of functions and classes inside it."""
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo[:0] = list(ast.iter_child_nodes(node))


def _of_scope(scope: ast.AST, name: str, graphless: bool) -> Iterator[Found]:
    nodes = list(_own(scope))
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    trains = any(called(c) in ("backward", "manual_backward") for c in calls) or name == "training_step"
    evaluates = not trains and (bool(_EVAL.match(name)) or any(called(c) == "eval" and not c.args for c in calls))
    quiet = graphless or any(isinstance(n, ast.With) and any(_NO_GRAPH.search(ast.unparse(i.context_expr)) for i in n.items) for n in nodes)
    forward = next((c for c in calls if _MODEL.match(ast.unparse(c.func))), None)
    if evaluates and not quiet and forward is not None:
        yield Found("evaluates-with-graph", ast.unparse(forward), forward.lineno)
    for loop in (n for n in nodes if isinstance(n, ast.For | ast.While)):
        yield from _of_loop(loop, trains=trains, quiet=quiet, evaluates=evaluates)
    yield from _moved_first(nodes)


def _of_loop(loop: ast.For | ast.While, *, trains: bool, quiet: bool, evaluates: bool) -> Iterator[Found]:
    inner = [n for child in loop.body for n in (child, *_own(child))]
    made = {t.id for n in inner if isinstance(n, ast.Assign) for target in n.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    fresh = {t.id for n in inner if isinstance(n, ast.Assign) and isinstance(n.value, ast.List) for t in n.targets if isinstance(t, ast.Name)}
    shown, looked = "", 0
    steps = any(isinstance(n, ast.Call) and called(n) in ("backward", "manual_backward") for n in inner)  # else the list is what a backward pass below is for
    for node in inner:
        if isinstance(node, ast.Call) and called(node) == "append" and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
            kept, value = ast.unparse(node.func.value), ast.unparse(node.args[0])
            if kept in fresh or not _TENSOR.search(value) or not {n.id for n in ast.walk(node.args[0]) if isinstance(n, ast.Name)} & made:
                continue
            if not GRAPHLESS.search(value) and not quiet and (steps or not (trains or evaluates)):
                yield Found("keeps-graph", ast.unparse(node), node.lineno)
            elif not _OFF_CARD.search(value) and (quiet or evaluates):
                yield Found("keeps-on-card", ast.unparse(node), node.lineno)
        elif (
            isinstance(node, ast.Assign)
            and trains
            and (looked := looked + 1) <= MOST_CARRIED
            and isinstance(node.value, ast.Call)
            and _MODEL.match(ast.unparse(node.value.func))
        ):
            given = {n.id for a in (*node.value.args, *(k.value for k in node.value.keywords)) for n in ast.walk(a) if isinstance(n, ast.Name)}
            carried = {t.id for target in node.targets for t in ast.walk(target) if isinstance(t, ast.Name)} & given
            shown = shown or "\n".join(ast.unparse(n) for n in loop.body)
            carried = {c for c in carried if not re.search(rf"\b{c}\b[^\n]*\.(?:detach|data)\b|(?:detach|repackage)\w*\([^\n]*\b{c}\b", shown)}
            if carried:
                yield Found("carries-graph", ast.unparse(node), node.lineno)


def _moved_first(nodes: list[ast.AST]) -> Iterator[Found]:
    """A model's ``.cuda()`` or ``.to(device)`` above the call that divides it."""
    moves: dict[str, ast.Call] = {}
    for call in sorted((n for n in nodes if isinstance(n, ast.Call)), key=lambda c: (c.lineno, c.col_offset)):
        action = called(call)
        if action in ("cuda", "to") and isinstance(call.func, ast.Attribute) and (action == "cuda" or re.search(r"cuda|device|rank", _arguments(call))):
            whole = ast.unparse(call.func.value)
            owner = whole if re.fullmatch(r"[\w.]+", whole) else "model" if "from_pretrained" in whole else ""
            if _MODEL.match(owner):
                moves.setdefault(owner, call)
        elif action in _WRAPS:
            divided = next((m for name, m in moves.items() if re.search(rf"\b{re.escape(name)}\b", _arguments(call))), None)
            if divided is not None and divided.lineno < call.lineno:
                yield Found("moves-before-sharding", f"{ast.unparse(divided)} above {ast.unparse(call.func)}(...)", divided.lineno)


def _arguments(call: ast.Call) -> str:
    return ", ".join([*(ast.unparse(a) for a in call.args), *(ast.unparse(k.value) for k in call.keywords)])
