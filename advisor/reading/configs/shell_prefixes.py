"""Commands that only start another one (``srun``, ``mpirun``, ``env``, ``nohup``, ``apptainer exec image``, ``docker run image``): where that one begins.

Which options take a value: GNU coreutils' and util-linux' manuals, numactl(8), sudo(8), srun(1), Open MPI's and MPICH's mpirun(1),
apptainer exec, docker run, nsys profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from advisor.reading.configs import slurm
from advisor.reading.pattern import pattern

_ASSIGNED = pattern(r"^[A-Za-z_]\w*=")


class Prefix(Struct):
    """``at``: where the command begins. ``slurm``: options of Slurm. ``keys``: other settings, ``wrapped``: a command within a word, ``sets``: variables."""

    at: int
    slurm: dict[str, str] | None = None
    keys: list[tuple[str, Any]] = field(default_factory=list)
    wrapped: str | None = None
    sets: list[str] = field(default_factory=list)
    own: bool = False  # the word at ``at`` is an image that runs its own program


_APPTAINER = "-B --bind --env --env-file --pwd --workdir -H --home -o --overlay --network --security --app --mount -s --shell -W --add-caps"
_VALUED = {  # options that take the next word; all others stand alone
    "nohup": "", "setsid": "", "caffeinate": "", "catchsegv": "", "command": "", "exec": "-a", "time": "-f --format -o --output",
    "sudo": "-u --user -g --group -h --host -p --prompt -C -D --chdir -R -T", "env": "-u --unset -C --chdir -S --split-string", "nice": "-n",
    "stdbuf": "-i -o -e --input --output --error", "ionice": "-c -n -p --class --classdata", "chrt": "", "strace": "-e -o -p -s -P",
    "numactl": "-N --cpunodebind -m --membind -i --interleave -C --physcpubind -p --preferred",
    "xvfb-run": "-n -e -f -s -w -p", "dumb-init": "", "tini": "-p",
    "timeout": "-k --kill-after -s --signal", "taskset": "",
    "apptainer exec": _APPTAINER, "apptainer run": _APPTAINER, "singularity exec": _APPTAINER, "singularity run": _APPTAINER,
    "enroot start": "-m --mount -e --env -c --conf -r",
    "nsys profile": "-t --trace -o --output -s --sample -c -d -y -f --force-overwrite -w -b -e", "ncu": "-o -f --set -k -c -s --section",
    "conda run": "-n --name -p --prefix --cwd", "mamba run": "-n --name -p --prefix --cwd", "micromamba run": "-n --name -p --prefix --cwd",
    "docker exec": "-e --env --env-file -u --user -w --workdir", "podman exec": "-e --env --env-file -u --user -w --workdir",
}  # fmt: skip
_OPERANDS = {  # words of their own before the command: an image, a duration, a mask
    "timeout": 1, "taskset": 1, "chrt": 1, "apptainer exec": 1, "apptainer run": 1, "singularity exec": 1, "singularity run": 1, "enroot start": 1,
    "docker exec": 1, "podman exec": 1, "docker run": 1, "podman run": 1, "nvidia-docker run": 1,
}  # fmt: skip
_DOCKER_ALONE = frozenset(
    {
        "--rm",
        "--privileged",
        "--init",
        "--detach",
        "--interactive",
        "--tty",
        "--read-only",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--publish-all",
        "--replace",
    }
)
_MPI = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "horovodrun"})
_MPI_TWO = frozenset({"-mca", "--mca", "--gmca", "-gmca", "-genv"})
_MPI_ALONE = frozenset(
    {"--allow-run-as-root", "-allow-run-as-root", "--oversubscribe", "-oversubscribe", "--tag-output", "-tag-output", "--report-bindings", "-report-bindings"}
    | {"--bind-to-none", "--display-map", "--use-hwthread-cpus", "--nooversubscribe", "-v", "-q", "--verbose", "--quiet", "-genvall", "--novm", "--no-local"}
    | {"--merge-stderr-to-stdout", "--timestamp-output", "-timestamp-output", "--display-allocation", "--nolocal", "-nolocal", "--pernode", "-pernode"}
    | {"-l", "-prepend-rank", "-verbose", "-print-all-exitcodes", "--gloo", "--mpi", "--disable-cache"}  # MPICH's, and horovodrun's
)
_MPI_COUNTS = {
    "-n": "total",
    "-np": "total",
    "--np": "total",
    "-c": "total",
    "-N": "node",
    "-npernode": "node",
    "--npernode": "node",
    "-ppn": "node",
    "-perhost": "node",
}
_ASIDE = frozenset(
    {"hostname", "nvidia-smi", "ray", "echo", "date", "sleep", "mkdir", "cp", "rm", "rsync", "ls", "cat", "ip", "printenv", "which", "pip", "lscpu"}
)
_DOCKERS = frozenset({"docker run", "podman run", "nvidia-docker run"})


def prefix(words: Sequence[str]) -> Prefix | None:
    """What stands before the command; ``None`` where the first word is the command."""
    head = words[0].rsplit("/", 1)[-1] if words else ""
    if head in ("srun", "sbatch", "salloc"):
        given, at = slurm.options(words[1:], waits=head == "srun")
        aside = head == "srun" and "".join(words[at + 1 : at + 2]).rsplit("/", 1)[-1] in _ASIDE
        return Prefix(at + 1, slurm=None if aside else given, wrapped=given.pop("wrap", None))  # a step beside the training: who is the head, Ray's start
    if head in _MPI:
        return _mpi(words)
    name = f"{head} {words[1]}" if len(words) > 1 and (f"{head} {words[1]}" in _VALUED or f"{head} {words[1]}" in _DOCKERS) else head
    if name not in _VALUED and name not in _DOCKERS:
        return None
    found = Prefix(len(name.split()))
    valued = _VALUED.get(name, "").split()
    while found.at < len(words) and words[found.at].startswith("-") and len(words[found.at]) > 1:
        option, equals, value = words[found.at].partition("=")
        found.at += 1
        if option == "--":
            break
        if equals or found.at >= len(words) or not (_docker_takes(option) if name in _DOCKERS else option in valued):
            pass
        else:
            value = words[found.at]
            found.at += 1
        if name in _DOCKERS and option == "--gpus":
            found.keys += _docker_gpus(value)
        if option in ("-e", "--env") and name.split()[0] in ("docker", "podman", "nvidia-docker", "apptainer", "singularity") and "=" in value:
            found.sets.append(value)
    found.at += _OPERANDS.get(name, 0)
    if name in _DOCKERS and found.at < len(words) and words[found.at].startswith("-"):
        found.at -= 1  # arguments of the image's own program, which stands for it
        found.own = True
    if name in ("env", "sudo"):
        while found.at < len(words) and _ASSIGNED.match(words[found.at]):
            found.sets.append(words[found.at])
            found.at += 1
    return found


def _docker_takes(option: str) -> bool:
    return option not in _DOCKER_ALONE and not (len(option) > 1 and option[1] != "-" and set(option[1:]) <= set("ditPq"))


def _docker_gpus(value: str) -> list[tuple[str, Any]]:
    value = value.strip("\"'")
    if (count := slurm.number(value)) is not None:
        return [("num_gpus", count)]
    devices = value.removeprefix('"').removesuffix('"').removeprefix("device=")
    return [("num_gpus", len(devices.split(",")))] if value != devices and devices else []


def _mpi(words: Sequence[str]) -> Prefix:
    """``mpirun -np 16 -H a:8,b:8 -x VAR -mca k v``: processes of the job, of a node, and the hosts."""
    found, counts, hosts = Prefix(1), {}, 0
    while found.at < len(words) and words[found.at].startswith("-"):
        option, equals, value = words[found.at].partition("=")
        found.at += 1
        if option in _MPI_TWO:
            found.at += 2
            continue
        if option in _MPI_ALONE:
            continue
        if not equals and found.at < len(words):
            value = words[found.at]
            found.at += 1
        if option in _MPI_COUNTS and (count := slurm.number(value)) is not None:
            counts[_MPI_COUNTS[option]] = count
        elif option in ("-H", "-host", "--host", "--hosts", "-hosts"):
            hosts = len({host.partition(":")[0] for host in value.split(",") if host})
        elif option in ("-x", "--env", "-env") and "=" in value:
            found.sets.append(value)
    total, node = counts.get("total"), counts.get("node")
    nodes = hosts or (total // node if total and node and total % node == 0 else 0)
    if nodes:
        found.keys.append(("nodes", nodes))
    here = node or (max(1, total // (nodes or 1)) if total and total > 1 else None)
    if here is not None and here <= slurm.WIDEST:
        found.keys.append(("gpus_per_node", here))
    return found
