"""What a job file's YAML or JSON says in a way that two readers understand differently: a key twice, numbers that YAML 1.1 takes in another base.

Source: YAML 1.1 int (yaml.org/type/int.html): a leading zero makes a number octal, colons make it one of base 60. YAML 1.2 dropped both.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

OCTAL = re.compile(r"[-+]?0[0-7_]+")
SIXTY = re.compile(r"[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+")


_QUOTED = ("'", '"', "|", ">")


def other_base(written: str) -> str | None:
    """Why a plain number is not what it looks like; ``None`` where it is."""
    if OCTAL.fullmatch(written) and written.strip("+-0_"):
        return f"{written} has a leading zero, which YAML reads in base 8 ({int(written.replace('_', ''), 8)}); write it without the zero"
    if SIXTY.fullmatch(written):
        return f"{written} is a number of base 60 in YAML; write the number itself"
    return None


def of_yaml(text: str, loader: Any) -> str | None:
    """The first thing wrong with how a YAML text is written; ``None`` where nothing is.

    Raises:
        yaml.YAMLError: no YAML.
        RecursionError: nested beyond the parser's limit.
    """
    root = yaml.compose(text, Loader=loader)
    seen: set[int] = set()
    todo: list[tuple[yaml.Node, str]] = [(root, "")] if root is not None else []
    while todo:
        node, path = todo.pop()
        if id(node) in seen:
            return "YAML aliases (*name) are not read: they can expand without bound"
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
                inner = f"{path}.{name}" if path else name
                line = key.start_mark.line + 1
                if name in lines and name != "?":
                    return f"{inner} is written twice (lines {lines[name]} and {line}); keep the one that is meant"
                lines[name] = line
                todo.append((value, inner))
        elif isinstance(node, yaml.SequenceNode):
            todo += [(item, path) for item in node.value]
        elif isinstance(node, yaml.ScalarNode) and node.style not in _QUOTED and node.tag == "tag:yaml.org,2002:int" and (why := other_base(node.value)):
            return f"{path}, line {node.start_mark.line + 1}: {why}"
    return None
