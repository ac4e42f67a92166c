"""Containers of a Kubernetes manifest: the command that each runs, its environment, the GPUs that it asks for, and how many there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from advisor.frameworks.key import Key
from advisor.reading.configs import from_shell
from advisor.reading.configs.parsed import MAX_DEPTH, Parsed

_MOST = 50  # containers of one manifest
_VISITS = 20_000
_GPUS = re.compile(r"^(?:nvidia\.com|amd\.com)/gpu$")


def read(root: yaml.Node, lines: list[str], parsed: Parsed) -> None:
    """Add what the containers of a manifest run. ``root`` is the composed document; nothing of it is constructed."""
    found = list(_containers(root, 0, [_VISITS]))[:_MOST]
    for container in found:
        _container(container, lines, parsed)
    if found and (workers := _workers(root)) is not None and workers[0] > 1:
        parsed.add(Key("nodes", workers[0], workers[1] + 1, _line(lines, workers[1]), "srun"))


def _containers(node: yaml.Node, depth: int, budget: list[int]) -> Iterator[yaml.MappingNode]:
    budget[0] -= 1
    if depth > MAX_DEPTH or budget[0] < 0:
        return
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if getattr(key, "value", None) == "containers" and isinstance(value, yaml.SequenceNode):
                yield from (item for item in value.value if isinstance(item, yaml.MappingNode))
            else:
                yield from _containers(value, depth + 1, budget)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _containers(item, depth + 1, budget)


def _container(node: yaml.MappingNode, lines: list[str], parsed: Parsed) -> None:
    parts = _parts(node)
    words = [word for name in ("command", "args") for word in _words(parts.get(name))]
    environment = parts.get("env")
    for item in environment.value if isinstance(environment, yaml.SequenceNode) else ():
        pair = _mapping(item)
        if pair.get("name") and pair.get("value") is not None:
            at = item.start_mark.line
            parsed.add(Key(str(pair["name"]), pair["value"], at + 1, _line(lines, at), "env"))
    for at, gpus in _gpus(parts.get("resources")):
        parsed.add(Key("gpus_per_node", gpus, at + 1, _line(lines, at), "srun"))
    if words:
        start = next(parts[name] for name in ("command", "args") if name in parts).start_mark.line
        script = from_shell.parse(shlex.join(words))
        for key in script.keys:
            at = next((n for n in range(start, len(lines)) if key.path in lines[n]), start)
            parsed.add(Key(key.path, key.value, at + 1, _line(lines, at), key.scope))
        parsed.programs += [(program, start + 1, _line(lines, start)) for program, _, _ in script.programs]


def _words(node: yaml.Node | None) -> list[str]:
    if isinstance(node, yaml.SequenceNode):
        return [str(item.value) for item in node.value if isinstance(item, yaml.ScalarNode)]
    return [str(node.value)] if isinstance(node, yaml.ScalarNode) and node.value else []


def _mapping(node: yaml.Node | None) -> dict[str, Any]:
    return {key: value.value for key, value in _parts(node).items() if isinstance(value, yaml.ScalarNode)}


def _parts(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """The values of a mapping by key; empty where the node is none."""
    return {str(key.value): value for key, value in node.value if isinstance(key, yaml.ScalarNode)} if isinstance(node, yaml.MappingNode) else {}


def _gpus(resources: yaml.Node | None) -> Iterator[tuple[int, int]]:
    """(line, GPUs) of the limits, else of the requests."""
    sides = _parts(resources)
    for name, value in _parts(sides.get("limits") or sides.get("requests")).items():
        if _GPUS.match(name) and re.fullmatch(r"\d{1,5}", str(value.value)):
            yield value.start_mark.line, int(value.value)
            return


def _without_gpus(root: yaml.Node) -> bool:
    """Whether a kind of pod writes its containers, and none of them asks for a GPU: an MPIJob's launcher."""
    containers = False
    stack: list[tuple[yaml.Node, int]] = [(root, 0)]
    for _ in range(_VISITS):
        if not stack:
            break
        node, depth = stack.pop()
        if next(_gpus(node), None) is not None:
            return False
        containers = containers or "containers" in _parts(node)
        if depth < MAX_DEPTH and isinstance(node, yaml.MappingNode):
            stack += [(value, depth + 1) for _, value in node.value]
        elif depth < MAX_DEPTH and isinstance(node, yaml.SequenceNode):
            stack += [(value, depth + 1) for value in node.value]
    return containers


def _workers(root: yaml.Node) -> tuple[int, int] | None:
    """(pods, line): ``replicas`` of every kind of a PyTorchJob together, else ``parallelism`` of a Job."""
    found: dict[str, list[tuple[int, int]]] = {"replicas": [], "parallelism": []}
    on_cards: list[tuple[int, int]] = []  # of the kinds that are not without GPUs
    stack: list[tuple[yaml.Node, int]] = [(root, 0)]
    for _ in range(_VISITS):
        if not stack:
            break
        node, depth = stack.pop()
        for key, value in node.value if isinstance(node, yaml.MappingNode) and depth < MAX_DEPTH else ():
            name = getattr(key, "value", None)
            if name in found and isinstance(value, yaml.ScalarNode) and re.fullmatch(r"\d{1,5}", str(value.value)):
                found[name].append((int(value.value), key.start_mark.line))
                if name == "replicas" and not _without_gpus(node):
                    on_cards.append(found[name][-1])
            else:
                stack.append((value, depth + 1))
    told = on_cards or found["replicas"] or found["parallelism"]
    return (sum(number for number, _ in told), min(line for _, line in told)) if told else None


def _line(lines: list[str], number: int) -> str:
    return lines[number].strip()[:500] if 0 <= number < len(lines) else ""
