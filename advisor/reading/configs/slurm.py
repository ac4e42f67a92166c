"""Slurm's options (sbatch, srun, salloc) as the nodes, the GPUs of a node and the card that they ask for.

Source: Slurm's manual pages sbatch(1) and srun(1): ``--gres`` and ``--gpus-per-node`` count a node's GPUs, ``--gpus`` those of the whole job,
``--gpus-per-task`` those of each task; a count may have the GPU's type before it (``gpu:a100:4``), and ``--nodes`` may be a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from advisor import cards
from advisor.reading.pattern import pattern

_SHORT = {"N": "nodes", "G": "gpus", "n": "ntasks"}
# short options that take a value, and long ones that take none: what follows those is the command
_VALUED = frozenset("ABCDFGJLMNSTVabcdeijmnopqrtwx")
_BARE = frozenset(
    {"exclusive", "overlap", "overcommit", "oversubscribe", "label", "unbuffered", "no-kill", "kill-on-bad-exit", "pty", "multi-prog", "preserve-env", "quiet"}
    | {"verbose", "whole", "exact", "contiguous", "requeue", "no-requeue", "parsable", "test-only", "wait-all-nodes", "spread-job", "use-min-nodes", "hold"}
    | {"immediate", "disable-status", "no-allocate", "export-file", "get-user-env", "reboot", "ignore-pbs", "interactive", "nvmps", "propagate"}
    | {"no-container-mount-home", "container-mount-home", "container-writable", "container-readonly", "container-remap-root", "no-container-remap-root"}
    | {"no-container-entrypoint", "container-entrypoint", "no-shell"}
)
_DIRECTIVE = pattern(r"^#SBATCH[ \t]+(\S.*)$")
_COUNT = pattern(r"(?:^|[:=])([0-9]{1,6})(?:\(|$)")
WIDEST = 16  # GPUs of the widest node that is sold as one (NVIDIA DGX-2): more tasks than that are processes of a CPU
WANTED = ("nodes", "gpus", "gpus-per-node", "gpus-per-task", "gres", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "tres-per-node", "tres-per-task")


def directive(line: str) -> dict[str, str]:
    """The options of one ``#SBATCH`` line; a line with two of the sign is commented out."""
    match = _DIRECTIVE.match(line)
    return options(match.group(1).split(" #", 1)[0].split(), waits=False)[0] if match else {}


def options(words: Sequence[str], *, waits: bool = True) -> tuple[dict[str, str], int]:
    """The options at the beginning of ``words``, and the position of what follows them: the command.

    ``waits``: ``-W`` and ``--wait`` take seconds (srun), or else nothing (sbatch).
    """
    bare, valued = (_BARE, _VALUED | {"W"}) if waits else (_BARE | {"wait"}, _VALUED)
    found: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in bare and at < len(words):
                value = words[at]
                at += 1
        else:
            name, value = word[1], word[2:].removeprefix("=")
            if not value and name in valued and at < len(words):
                value = words[at]
                at += 1
            name = _SHORT.get(name, name)
        found[name] = value.strip("\"'")
    return found, at


def asked(given: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    """``(key of the launchers' table, value, the option that says so)``: nodes, GPUs a node, the card."""
    nodes = number(given.get("nodes", "").partition("-")[0])
    tasks, per_node = number(given.get("ntasks", "")), number(given.get("ntasks-per-node", ""))
    if nodes is None and tasks and per_node and tasks % per_node == 0:
        nodes = tasks // per_node
    if nodes is not None:
        yield "nodes", nodes, "nodes" if "nodes" in given else "ntasks"
    gpus = _gpus_of_a_node(given, nodes, tasks, per_node)
    if gpus is not None:
        yield "gpus_per_node", gpus[0], gpus[1]
    for name in ("gres", "gpus-per-node", "gpus", "gpus-per-task", "tres-per-node", "tres-per-task"):
        for part in _parts(given.get(name, ""), name):
            kind = part.partition(":")[0]
            if kind and not kind[0].isdigit() and (card := cards.find(kind.replace("_", " "))) is not None:
                yield "gpu_type", card.id, name
                return


def variables(given: Mapping[str, str]) -> dict[str, str]:
    """What Slurm sets for the script (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES")."""
    told = {key: value for key, value, _ in asked(given)}
    found = {"SLURM_NNODES": told.get("nodes"), "SLURM_JOB_NUM_NODES": told.get("nodes"), "SLURM_GPUS_ON_NODE": told.get("gpus_per_node")}
    found["SLURM_GPUS_PER_NODE"] = _gpus(given, "gpus-per-node")
    found["SLURM_GPUS"] = _gpus(given, "gpus")
    found["SLURM_NTASKS_PER_NODE"] = per_node = number(given.get("ntasks-per-node", ""))
    found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = number(given.get("ntasks", "")) or (per_node and per_node * (told.get("nodes") or 1))
    return {name: str(value) for name, value in found.items() if value}


def _gpus_of_a_node(given: Mapping[str, str], nodes: int | None, tasks: int | None, per_node: int | None) -> tuple[int, str] | None:
    for name in ("gpus-per-node", "gres", "tres-per-node"):
        if (count := _gpus(given, name)) is not None:
            return count, name
    if (total := _gpus(given, "gpus")) is not None:
        return max(1, total // (nodes or 1)), "gpus"
    tasks_here = per_node or (max(1, tasks // (nodes or 1)) if tasks else None)
    for name in ("gpus-per-task", "tres-per-task"):
        if (count := _gpus(given, name)) is not None:
            return count * (tasks_here or 1), name
    if tasks_here is not None and 1 < tasks_here <= WIDEST:  # one task a node is a launcher of its own: it says nothing of the node's GPUs
        return tasks_here, "ntasks-per-node" if per_node else "ntasks"
    return None


def _gpus(given: Mapping[str, str], name: str) -> int | None:
    """The GPUs of an option: ``4``, ``a100:4``, ``gpu:a100:4,nvme:1``, ``gpu``; several types are added up."""
    alone = 0 if name.startswith("gpus") else 1  # a resource without a count is one; the options of GPUs alone take a number
    counts = [int(match.group(1)) if (match := _COUNT.search(part)) else alone for part in _parts(given.get(name, ""), name)]
    return sum(counts) or None


def _parts(value: str, name: str) -> list[str]:
    """The parts of an option that count GPUs, without the resource's name."""
    parts = [part.strip() for part in value.split(",") if part.strip() and "$" not in part]
    if name.startswith("gpus"):
        return parts
    resource = pattern(r"^(?:gres[/:])?gpu(?=[:=]|$)[:=]?")
    return [resource.sub("", part) for part in parts if resource.match(part)]


def number(text: str) -> int | None:
    """A count as a person writes it: up to six of the digits 0 to 9, and not zero."""
    return int(text) or None if text.isascii() and text.isdigit() and len(text) <= 6 else None
