"""Documents within a script: a here-document that is a config or Python code, and the environment that ``ray job submit`` is given as JSON."""

from __future__ import annotations

from advisor.frameworks.key import Key
from advisor.reading.configs import from_json, from_python
from advisor.reading.configs.parsed import Parsed
from advisor.reading.configs.shell_expand import Scope
from advisor.reading.pattern import pattern

_MOST = 100_000
_REFERENCE = pattern(r"\$(?:\{\w+\}|[A-Za-z_]\w*)")
_BARE = pattern(r"([:\[,][ \t]*)\$(?:\{\w+\}|\w+)(?=\s*[,}\]\n])")  # a value of JSON that the script takes from a variable, without quotes


def read(body: str, line: int, program: list[str], scope: Scope, parsed: Parsed) -> None:
    """Keys of a here-document: JSON or YAML that is written to a file, Python code that is run. Anything else is let pass.

    Known variables are put in, as the shell does; in JSON an unknown one that stands for a bare value leaves that value unsaid.
    """
    if len(body) > _MOST or not body.strip():
        return
    if program[:1] in (["python"], ["python3"]):
        found = from_python.parse(body)
    elif body.lstrip()[0] == "{":
        found = from_json.parse(_BARE.sub(r"\1null", _filled(body, scope)))
    elif program[:1] in (["cat"], ["tee"]) or not program:
        from advisor.reading.configs import from_yaml  # which reads scripts within its values, through from_shell

        found = from_yaml.parse(_filled(body, scope))
    else:
        return
    for key in found.keys if found is not None else ():
        parsed.add(Key(key.path, key.value, key.line + line, key.text, key.scope, key.weak))
    if found is not None:
        parsed.calls += [(name, at + line, text) for name, at, text in found.calls]
        parsed.imports += found.imports


def _filled(body: str, scope: Scope) -> str:
    """The document with the values of the variables that the script has assigned."""
    return _REFERENCE.sub(lambda match: scope.variables.get(match.group().strip("${}"), match.group()).replace("\n", " "), body)[:_MOST]


def environment(text: str, line: int, where: str, parsed: Parsed) -> None:
    """``{"env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "..."}}``: variables as if the script had exported them."""
    data = from_json.load(text[:_MOST])
    found = data.get("env_vars") if isinstance(data, dict) else None
    for name, value in found.items() if isinstance(found, dict) else ():
        parsed.add(Key(str(name), value, line, where, scope="env"))
