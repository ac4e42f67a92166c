"""Notebooks: their code cells, joined; shell escapes are read as commands, outputs are left aside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advisor.frameworks.key import Key
from advisor.reading.configs import from_python, from_shell
from advisor.reading.configs.parsed import Parsed

_CELLS = 2_000


def is_notebook(data: Any) -> bool:
    """Whether a JSON text is a notebook."""
    return isinstance(data, Mapping) and isinstance(data.get("cells"), list) and ("nbformat" in data or "metadata" in data)


def parse(data: Mapping[str, Any]) -> Parsed:
    """Keys of all code cells. A line number counts through the code cells, as if they were one file."""
    parsed = Parsed("notebook")
    code: list[str] = []
    shell: list[tuple[int, str]] = []
    for cell in data["cells"][:_CELLS]:
        if not isinstance(cell, Mapping) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        if text.lstrip().startswith(("%%bash", "%%sh", "%%shell")):
            shell += [(len(code) + i + 1, line) for i, line in enumerate(text.splitlines()[1:])]
            code += ["" for _ in text.splitlines()]
            continue
        for line in text.splitlines():
            escaped = re.match(r"^\s*[!%](.*)$", line)
            if escaped:
                shell.append((len(code) + 1, escaped.group(1)))
            code.append("" if escaped else line)
    found = from_python.parse("\n".join(code))
    if found is not None:
        parsed.extend(found)
    for number, line in shell:
        for key in from_shell.parse(line).keys:
            parsed.add(Key(key.path, key.value, number, key.text, key.scope, key.weak))
    return parsed
