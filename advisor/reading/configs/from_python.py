"""Python, parsed and never run: keyword arguments of calls, literal assignments, dataclass and argparse defaults, comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from advisor.frameworks.key import CHOSEN, Key, Unread
from advisor.reading.configs.branches import without_dead
from advisor.reading.configs.parsed import MAX_DEPTH, Parsed, RefusedError
from advisor.reading.configs.python_repair import tree_of
from advisor.reading.pattern import pattern

_MAX_BYTES = 1_000_000
_NOT_A_MODEL = pattern(r"Tokenizer|Processor|Config|FeatureExtractor|Pipeline|Scheduler")
_MODEL = pattern(r"model|net\b|module|policy|transformer|^self$", re.IGNORECASE)
_WITH_REFERENCE = frozenset({"DPOTrainer", "KTOTrainer"})  # trl: the reference model is their second argument
_SETTING = pattern(r"^[ \t]*[\w.]+[ \t]*=[^=]")
_DTYPES = frozenset({"bfloat16", "float16", "float32", "half"})


def parse(text: str) -> Parsed | None:
    """What Python code says; ``None`` where the text is not Python, even after repairs.

    Raises:
        RefusedError: larger or nested deeper than any training script.
    """
    if len(text) > _MAX_BYTES:
        raise RefusedError(f"{len(text):,} characters of Python; at most {_MAX_BYTES:,} are read")
    tree, kept = tree_of(text)
    if tree is None:
        return None
    tree = without_dead(tree)
    lines = text.splitlines()
    parsed = Parsed("python")
    others = _registry(tree)
    if others:
        tree.body = [node for node in tree.body if node not in others]
        why = "configurations of their own; one runs at a time, and the first of the file was counted. Give the one that you run"
        parsed.notes.append((others[0].lineno, ", ".join(f"{node.name}()" for node in others)[:200], why))
    reader = _Reader(parsed, lines)
    reader.read(tree)
    left_out = {line for node in others for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    parsed.comments = [(line, remark) for line, remark in _comments(text) if line not in left_out]
    for number in (n for n in kept if n <= len(lines) and _SETTING.search(lines[n - 1])):  # prose between code is no loss
        parsed.notes.append((number, lines[number - 1].strip()[:200], "this line could not be parsed as Python"))
    return parsed


def _registry(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions of a file of configurations, such as torchtitan's ``config_registry.py``, without the first: each takes nothing and makes one config."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not node.args.args and node.returns is not None:
            found += [node] if (_dotted(node.returns) or "").endswith("Config") else []
    called = {_dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} if found else set()
    alike = len({_dotted(node.returns) for node in found if node.returns is not None}) == 1 and not called & {node.name for node in found}
    return found[1:] if alike else []  # a script's own helpers make one part each, and it calls them


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        match = re.search(r"(?:^|\s)#\s?(.*)$", line)
        if match and match.group(1).strip():
            yield number, match.group(1).strip()


_TENSORS = frozenset({
    "zeros", "ones", "empty", "full", "tensor", "as_tensor", "arange", "linspace", "rand", "randn", "randint", "eye", "zeros_like", "ones_like", "empty_like",
    "full_like", "rand_like", "randn_like", "empty_strided", "device",
})  # fmt: skip


class _Reader:
    """Walks a tree once. Names that are assigned one literal stand for it."""

    def __init__(self, parsed: Parsed, lines: list[str]) -> None:
        self.parsed = parsed
        self.lines = lines
        self.constants: dict[str, Any] = {}

    def read(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                self._assign(node)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Import):
                self.parsed.imports += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                self.parsed.imports += [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Constant):
                        self._add(key.value, value.value, value.lineno, weak=True, scope="dict")

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None:
            return
        for target in targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                literal = self.value(value)
                if isinstance(literal, Unread):
                    continue
                path = _dotted(name)
                if path is None:
                    continue
                self.constants.setdefault(path, literal)
                if not isinstance(literal, dict):
                    self._add(path.rsplit(".", 1)[-1], literal, name.lineno, weak=True)

    def _call(self, node: ast.Call) -> None:
        name = _dotted(node.func)
        if name is None:
            if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":  # model(x).loss.backward(): a loop of one's own
                self.parsed.calls.append(("backward", node.lineno, self._line(node.lineno)))
            return
        leaf = name.rsplit(".", 1)[-1]
        owner = name[: -len(leaf) - 1]
        line = node.lineno
        if leaf == "from_pretrained" and _NOT_A_MODEL.search(owner):
            return
        if leaf == "add_argument":
            self._argument(node)
            return
        if owner == "torch" and leaf in _TENSORS:
            return  # the dtype and place of one tensor, not of the model
        self.parsed.calls.append((name, line, self._line(line)))
        scope = "TrainingArguments" if leaf.endswith("TrainingArguments") else leaf  # subclasses take the same arguments
        if scope != leaf:
            self.parsed.calls.append((scope, line, self._line(line)))
        if owner.startswith("Fast") and leaf in ("from_pretrained", "get_peft_model"):
            scope = f"FastLanguageModel.{leaf}"  # FastModel and FastVisionModel take the same arguments
            self.parsed.calls.append((scope, line, self._line(line)))
        if node.args:
            self._first(node.args[0], leaf, owner, scope, line)
            if leaf in _WITH_REFERENCE and len(node.args) > 1:
                self._keyword("ref_model", node.args[1], scope)
        for keyword in node.keywords:
            if keyword.arg is not None:
                whole = name == "deepspeed.initialize" and keyword.arg in ("config", "config_params")  # the JSON as a dict
                self._keyword("" if whole else keyword.arg, keyword.value, scope)

    def _first(self, node: ast.expr, leaf: str, owner: str, scope: str, line: int) -> None:
        """Positional arguments that matter: the model's name, what is compiled, the dtype that a model is turned into, a fraction."""
        value = self.value(node)
        if leaf == "from_pretrained":
            self._add("pretrained", value, line, scope=scope)
            if owner.endswith("ForSequenceClassification"):
                self._add("model_head", "classification", line, scope=scope)
        elif leaf.endswith("Trainer") and isinstance(value, str):  # TRL's take a name where a model is meant, and load it
            self._add("model", value, line, scope=scope)
        elif leaf == "create_model" and isinstance(value, str):  # timm and open_clip: the name comes first
            self._add("pretrained", value, line, scope=scope)
        elif leaf == "compile" and _MODEL.search(str(value)):
            self.parsed.calls.append(("compile-model", line, self._line(line)))
        elif leaf == "to" and isinstance(value, str) and value in _DTYPES and (_MODEL.search(owner) or "from_pretrained" in owner):
            self._add("weights_dtype", value, line, scope="torch.to")
        elif leaf == "set_per_process_memory_fraction":
            self._add("fraction", value, line, scope=leaf)

    def _keyword(self, path: str, node: ast.expr, scope: str, depth: int = 0) -> None:
        value = self.value(node)
        if isinstance(value, dict) and value and depth < MAX_DEPTH:
            for name, item in _flat(value, path):
                self._add(name.removeprefix("."), item, node.lineno, scope=scope)
        elif not path:
            return  # a config that stands elsewhere
        elif path in ("mixed_precision", "mp_policy") and isinstance(node, ast.Call):
            return  # MixedPrecision(param_dtype=...): a call of its own, whose arguments are read
        elif isinstance(node, ast.Call) and not isinstance(value, str):
            self._add(path, Unread(_dotted(node.func) or "a call"), node.lineno, scope=scope)
        else:
            self._add(path, value, node.lineno, scope=scope)

    def _argument(self, node: ast.Call) -> None:
        flags = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        default = next((k.value for k in node.keywords if k.arg == "default"), None)
        long = next((f for f in flags if f.startswith("--")), None)
        if long and default is not None and not isinstance(value := self.value(default), Unread):
            self._add(long.lstrip("-"), value, node.lineno, weak=True, scope="argparse")

    def _add(self, path: str, value: Any, line: int, *, weak: bool = False, scope: str = "") -> None:
        self.parsed.add(Key(path, value, line, self._line(line), scope, weak))

    def _line(self, number: int) -> str:
        return self.lines[number - 1].strip()[:500] if 0 < number <= len(self.lines) else ""

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """A literal, a torch dtype by its name, a name that stands for a literal; anything else is unread."""
        if depth > MAX_DEPTH:
            return Unread("...")
        if isinstance(node, ast.Constant):
            return Unread("...") if node.value is Ellipsis or isinstance(node.value, bytes | complex) else node.value
        if (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.USub)
            and isinstance(node.operand, ast.Constant)
            and isinstance(node.operand.value, int | float)
        ):
            return -node.operand.value
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            items = [self.value(item, depth + 1) for item in node.elts]
            return Unread("a list with expressions") if any(isinstance(i, Unread) for i in items) else items
        if isinstance(node, ast.Dict):
            return {
                key.value: self.value(value, depth + 1)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
            return {k.arg: self.value(k.value, depth + 1) for k in node.keywords if k.arg is not None}
        if isinstance(node, ast.BinOp):
            return _product(self.value(node.left, depth + 1), node.op, self.value(node.right, depth + 1))
        path = _dotted(node)
        if path is not None:
            if path in self.constants:
                return self.constants[path]
            if path.startswith("torch.") and path.count(".") == 1:
                return path.split(".")[1]
            if path.rsplit(".", 1)[-1].isupper() and path[:1].isupper():
                return path.rsplit(".", 1)[-1]  # an enumeration's member: ShardingStrategy.FULL_SHARD
            return Unread(path)
        return Unread(CHOSEN if isinstance(node, ast.IfExp | ast.BoolOp) else type(node).__name__)


def _product(left: Any, operator: ast.operator, right: Any) -> Any:
    """Sizes are often written ``1024 * 8``; only sums and products of numbers of sane size are worked out."""
    if isinstance(left, int | float) and isinstance(right, int | float) and abs(left) < 1e12 and abs(right) < 1e12:
        if isinstance(operator, ast.Mult):
            return left * right
        if isinstance(operator, ast.Add):
            return left + right
        if isinstance(operator, ast.FloorDiv) and right:
            return left // right
    return Unread("an expression")


def _flat(data: dict[str, Any], prefix: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        path = f"{prefix}.{name}"
        if isinstance(value, dict) and value and depth < MAX_DEPTH:
            yield from _flat(value, path, depth + 1)
        else:
            yield path, value


def _dotted(node: ast.AST) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    elif not parts:
        return None
    elif isinstance(node, ast.Call):
        parts.append("()")
    return ".".join(reversed(parts))
