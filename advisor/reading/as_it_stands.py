"""A text that parses as it is keeps its characters: a curled quote or an entity within a string is its content, not a browser's work."""

from __future__ import annotations

import ast
import json
import tomllib

from advisor.reading.characters import plain


def plain_unless_parsed(name: str, raw: str, most: int) -> str:
    """The text in the characters that programs print; as it stands where it is JSON, or Python, YAML or TOML by its name, of at most ``most`` characters."""
    changed = plain(raw)
    return raw if changed == raw or _parses(name.lower(), raw, most) else changed


def _parses(name: str, raw: str, most: int) -> bool:
    if len(raw) > most and not name.endswith((".ipynb", ".json")):
        return False
    try:
        if raw.lstrip()[:1] in ("{", "["):
            json.loads(raw)
        elif name.endswith(".py"):
            ast.parse(raw)
        elif name.endswith((".yaml", ".yml")):
            return _is_yaml(raw)
        elif name.endswith(".toml"):
            tomllib.loads(raw)
        else:
            return False
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _is_yaml(raw: str) -> bool:
    import yaml  # only where something would be changed

    try:
        return isinstance(yaml.compose(raw, Loader=yaml.SafeLoader), yaml.MappingNode)
    except yaml.YAMLError:
        return False
