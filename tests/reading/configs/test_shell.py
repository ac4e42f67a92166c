"""Shell scripts as people write their launches: each case is a construct of bash, and what the program would be given."""

from __future__ import annotations

import time
from typing import Any

import pytest

from advisor.frameworks.key import Unread
from advisor.reading.configs import from_shell


def given(text: str, key: str) -> Any:
    """The last value that the script gives a key."""
    values = [k.value for k in from_shell.parse(text).keys if k.path == key and k.scope != "env"]
    return values[-1] if values else None


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("torchrun train.py --a ${1:-vllm}", "a", "vllm"),
        ('B=${HOME_DIR:-"/m"}\nP=${P:-"${B}/models/Qwen3-8B"}\npython t.py --a $P', "a", "/m/models/Qwen3-8B"),
        ("A=8\npython t.py --a ${A:+16}", "a", 16),
        ("A=/x/Qwen3-8B.tar\nB=${A##*/}\npython t.py --a ${B%.tar}", "a", "Qwen3-8B"),
        ("A=FP8\npython t.py --a ${A,,}", "a", "fp8"),
        ("n=4\npython t.py --a $(expr 16 / $n)", "a", 4),
        ("MAX=96000\nCP=8\nX=(\n  --a $((MAX / CP))\n)\npython t.py ${X[@]}", "a", 12000),
        ("A=$((1024 * 8))\nB=$(( (A + 1024) * 2 ))\npython t.py --a $B", "a", 18432),
        ("export G=0,1,2,3\npython t.py --a $(echo $G | tr ',' '\\n' | wc -l)", "a", 4),
        ("python t.py --a $(basename /m/Llama-3)", "a", "Llama-3"),
        ('X=(\n  --a 1 #--a 2\n  #--a 3\n)\npython t.py "${X[@]}"', "a", 1),
        ('X=("--a hybrid" "--b 1")\nX+=(--c 2)\npython t.py "${X[@]}"', "a", "hybrid"),
        ('OPTS="--a 1 \\\n  --b 2"\npython t.py $OPTS', "b", 2),
        ("python t.py --a 1 2>&1 | tee log", "a", 1),
        ("python t.py --a > log.txt &", "a", True),
        ("python t.py \\\n  --a 1 \\\n  # --a 2 \\\n  --b 3", "b", 3),
        ("python t.py --a <path_to_model> --b 2", "a", "<path_to_model>"),
        ("python t.py --data x#500 --a 1", "a", 1),
        ("bash -c 'torchrun --nproc_per_node 2 t.py --a 7'", "a", 7),
        ('CMD="torchrun --nproc_per_node 2 t.py --a 7"\neval $CMD', "a", 7),
        ("ray job submit --address x -- python3 t.py --a 7", "a", 7),
        ("read -r -d '' CMD <<EOF\nt.module \\\n  --a 5\nEOF\ndeepspeed --module $CMD", "a", 5),
        ("run() { python t.py --a $1; }\nrun 6", "a", 6),
        ("for x in 3 4; do\n  python t.py --a $x\ndone", "a", 3),
    ],
)
def test_what_a_program_is_given(text: str, key: str, value: Any) -> None:
    assert given(text, key) == value


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ('"$D" == "fp8"', 1), ('"$D" != "fp8"', 2), ("-n $D", 1), ("-z $D", 2), ("-z $UNSET", 1), ("$N -gt 4", 1), ("$N -eq 4 || $N -eq 8", 1),
        ('"$D" = f*', 1), ("! $N -gt 4", 2), ("-v N", 1), ("$D == fp8 && $N -lt 4", 2),
    ],
)  # fmt: skip
def test_the_branch_that_a_script_takes(condition: str, value: int) -> None:
    text = f"D=fp8\nN=8\nif [[ {condition} ]]; then\n  A=(--a 1)\nelse\n  A=(--a 2)\nfi\npython t.py ${{A[@]}}"
    assert given(text, "a") == value


def test_case_takes_the_pattern_that_fits() -> None:
    text = "M=${1:-7b}\ncase $M in\n  3b|1b) L=1 ;;\n  7b)\n    L=2\n    ;;\n  *) L=3 ;;\nesac\npython t.py --a $L"
    assert given(text, "a") == 2


def test_a_condition_on_what_is_not_known_leaves_what_was_set() -> None:
    """The node's rank, a file that may exist: what was assigned before stays, and what was not is taken from the branch."""
    text = 'N=8\nif [ "$RANK" = 1 ]; then\n  N=1\n  M=3\nfi\nif [ -f x ]; then python t.py --a $N --b $M; fi'
    assert given(text, "a") == 8
    assert given(text, "b") == 3


def test_what_is_not_known_stays_unread() -> None:
    assert isinstance(given("python t.py --a $NOWHERE", "a"), Unread)
    assert isinstance(given("python t.py --a $(cat /etc/passwd | head -1)", "a"), Unread)


def test_a_here_document_that_is_a_config_is_read() -> None:
    text = 'cat > ds.json <<EOT\n{"zero_optimization": {"stage": 2}}\nEOT\ndeepspeed t.py --deepspeed ds.json'
    assert given(text, "zero_optimization.stage") == 2


def test_variables_of_a_ray_job_are_an_environment() -> None:
    text = 'ray job submit --runtime-env-json=\'{"env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}}\' -- python3 t.py --a 1'
    found = [k for k in from_shell.parse(text).keys if k.path == "PYTORCH_CUDA_ALLOC_CONF"]
    assert [(k.value, k.scope) for k in found] == [("max_split_size_mb:128", "env")]


def test_flags_of_tools_are_no_settings() -> None:
    assert given("pip install -r requirements.txt --index-url x\npython t.py --a 1", "r") is None


def test_lines_are_those_of_the_text() -> None:
    keys = from_shell.parse("#!/bin/bash\nX=(\n  --a 1\n  --b 2\n)\n\npython t.py ${X[@]} \\\n  --c 3\n").keys
    assert {k.path: k.line for k in keys} == {"a": 3, "b": 4, "c": 8}


@pytest.mark.parametrize(
    "text",
    [
        '"$(' * 20_000, "((" * 40_000, "${" * 40_000, "'\"`$(${" * 10_000, "a=1\n" + 'a="$a$a"\n' * 60 + "python t.py --x $a", "f() { f; f; }\nf\n",
        "A=(1 2)\n" + "A+=(${A[@]} ${A[@]})\n" * 40 + "python t.py ${A[@]}", "cat <<A\n" * 5_000, "case $x in\n" * 10_000, "if true; then\n" * 10_000,
        "A=${A:-" * 10_000, "`" * 50_000, "f() {\n" * 10_000, "A=" + "a" * 300 + "\npython x.py " + "${A%%*a*a*a*b} " * 1_000,
    ],
)  # fmt: skip
def test_hostile_scripts_end(text: str) -> None:
    started = time.process_time()
    from_shell.parse(text)
    assert time.process_time() - started < 4


@pytest.mark.parametrize("inner", ["x ) ) --a 1", ") --a 1", ";; --a 1", "( ) --a 1"])
def test_brackets_alone_within_a_word(inner: str) -> None:
    from_shell.parse(f'bash -c "{inner}"')
    from_shell.parse(f'python t.py "{inner}"')


def test_a_switch_for_a_command_at_the_end() -> None:
    from_shell.parse("bash '-c x --a 1'")
    from_shell.parse("python t.py '-c x'")
