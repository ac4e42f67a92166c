"""YAML: nodes with their lines, never constructed objects; aliases are followed within a budget."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from advisor.frameworks.key import Key, Unread
from advisor.reading.configs import from_shell, pods
from advisor.reading.configs.parsed import MAX_DEPTH, Parsed, RefusedError
from advisor.reading.configs.shell_starters import STARTERS
from advisor.reading.pattern import pattern

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_VISITS = 20_000
_MAX_BYTES = 1_000_000
_DOCUMENTS = 20
_CONSTRUCTOR = yaml.SafeLoader("")
_INTERPOLATION = pattern(r"\$\{([^${}]+)\}")
BOMB = "YAML bomb refused: its aliases stand for more than 20,000 values; write the values out"


def parse(text: str) -> Parsed | None:
    """Keys of a YAML mapping (several documents are read one after the other); ``None`` where the text is no mapping.

    Raises:
        RefusedError: aliases or nesting beyond any real config.
    """
    if len(text) > _MAX_BYTES:
        raise RefusedError(f"{len(text):,} characters; a YAML config has at most {_MAX_BYTES:,}")
    if (depth := _depth(text)) > MAX_DEPTH:
        raise RefusedError(f"nested {depth} deep; no training config is, so it was not read")
    try:
        nodes = [n for n, _ in zip(yaml.compose_all(text, Loader=_LOADER), range(_DOCUMENTS), strict=False)]
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    lines = text.splitlines()
    parsed = Parsed("yaml")
    for node in nodes:
        if isinstance(node, yaml.MappingNode):
            budget = [_MAX_VISITS]
            for path, value, line in _walk(node, "", 0, budget):
                parsed.add(Key(path, value, line + 1, lines[line].strip() if line < len(lines) else ""))
    if not parsed.keys:
        return None
    _interpolate(parsed)
    _scripts(parsed)
    if "containers:" in text:
        for node in nodes:
            pods.read(node, lines, parsed)
    parsed.comments = [(i + 1, line.split("#", 1)[1].strip()) for i, line in enumerate(lines) if line.lstrip().startswith("#") or " # " in line or " #" in line]
    return parsed


def _depth(text: str) -> int:
    deepest = depth = 0
    for sign in re.findall(r"[\[\]{}]", text):
        depth += 1 if sign in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _walk(node: yaml.Node, prefix: str, depth: int, budget: list[int]) -> Iterator[tuple[str, Any, int]]:
    if depth > MAX_DEPTH:
        raise RefusedError(f"nested more than {MAX_DEPTH} deep; no training config is, so it was not read")
    for key_node, value in node.value:
        _spend(budget)
        name = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
        if name == "<<":
            parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for part in parts:
                if isinstance(part, yaml.MappingNode):
                    yield from _walk(part, prefix, depth + 1, budget)
            continue
        path = f"{prefix}.{name}" if prefix else name
        line = key_node.start_mark.line
        if isinstance(value, yaml.MappingNode):
            if value.value:
                yield from _walk(value, path, depth + 1, budget)
            else:
                yield path, {}, line
        elif isinstance(value, yaml.SequenceNode):
            yield path, _list(value, budget), line
        else:
            yield path, scalar(value), line


def _list(node: yaml.SequenceNode, budget: list[int], depth: int = 0) -> list[Any]:
    found = []
    for item in node.value:
        _spend(budget)
        if isinstance(item, yaml.ScalarNode):
            found.append(scalar(item))
        elif isinstance(item, yaml.SequenceNode) and depth < MAX_DEPTH:
            found.append(_list(item, budget, depth + 1))
        elif isinstance(item, yaml.MappingNode):
            found.append({str(k.value): scalar(v) for k, v in item.value if isinstance(k, yaml.ScalarNode) and isinstance(v, yaml.ScalarNode)})
    return found


def _spend(budget: list[int]) -> None:
    budget[0] -= 1
    if budget[0] < 0:
        raise RefusedError(BOMB)


def scalar(node: yaml.Node) -> Any:
    """A scalar's value; tags that would build objects are kept as text."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
        return Unread(str(node.value))
    try:
        return _CONSTRUCTOR.construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        return str(node.value)


def _scripts(parsed: Parsed) -> None:
    """Commands within a value: the ``run: |`` of a job for a cluster, the ``args`` of a pod."""
    for key in list(parsed.keys):
        if isinstance(key.value, str) and "\n" in key.value and STARTERS.search(key.value):
            script = from_shell.parse(key.value)
            for found in script.keys:
                parsed.add(Key(found.path, found.value, key.line + found.line, found.text, found.scope))
            parsed.programs += [(program, key.line + line, text) for program, line, text in script.programs]


def _product(reference: str) -> int | None:
    """NeMo-RL's resolver ``${mul:512, 4}``; no other is worked out."""
    numbers = re.fullmatch(r"\s*mul:\s*(\d{1,9})\s*,\s*(\d{1,9})\s*", reference)
    return int(numbers[1]) * int(numbers[2]) if numbers else None


def _absolute(reference: str, path: str) -> str:
    """``${.a}`` stands beside the key, ``${..a}`` one level above it."""
    dots = len(reference) - len(reference.lstrip("."))
    return ".".join([*path.split(".")[:-dots], reference.lstrip(".")]) if dots else reference


def _interpolate(parsed: Parsed) -> None:
    """OmegaConf's ``${a.b}`` within the same text; what leads nowhere or is computed stays unread."""
    values = {key.path: key.value for key in parsed.keys}
    for position, key in enumerate(parsed.keys):
        value = key.value
        if not (isinstance(value, str) and "${" in value):
            continue
        for _ in range(5):
            if not isinstance(value, str) or (match := _INTERPOLATION.search(value)) is None:
                break
            target = values.get(_absolute(match.group(1).strip(), key.path))
            if target is None:
                target = _product(match.group(1))
            if target is None or isinstance(target, Unread | list | dict):
                break
            value = target if match.group(0) == value else value.replace(match.group(0), str(target))
        if isinstance(value, str) and "${" in value:
            value = Unread(value)
        parsed.keys[position] = Key(key.path, value, key.line, key.text, key.scope, key.weak)
