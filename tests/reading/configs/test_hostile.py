"""What must be refused, and that nothing pasted is ever run."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.reading.configs import read_config


def test_yaml_bomb_is_refused() -> None:
    lines = ['a0: &a0 ["x","x","x","x","x","x","x","x","x","x"]']
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    started = time.perf_counter()
    reading = read_config("config.yaml", "\n".join(lines) + "\nper_device_train_batch_size: *a11\n")
    assert reading is not None
    assert reading.problem is not None
    assert "YAML bomb refused" in reading.problem
    assert time.perf_counter() - started < 2


def test_deep_nesting_is_refused() -> None:
    for name, text in (("config.json", "[" * 100_000), ("config.yaml", "{a: " * 5_000), ("t.py", "f(" * 5_000), ("n.json", '{"a":' * 5_000)):
        reading = read_config(name, text)
        assert reading is None or reading.problem is not None, name


def test_nothing_is_run(tmp_path: object) -> None:
    marker = f"{tmp_path}/ran"
    texts = {
        "a.py": f"open({marker!r}, 'w')\nTrainingArguments(per_device_train_batch_size=__import__('os').system('touch {marker}'))",
        "b.yaml": f"x: !!python/object/apply:os.system ['touch {marker}']\nmicro_batch_size: 2\nbase_model: a/b\n",
        "c.sh": f"torchrun --nproc_per_node $(touch {marker}) train.py --per_device_train_batch_size `touch {marker}`",
        "d.txt": f"actor_rollout_ref.model.path=${{oc.env:HOME}}\nalgorithm.adv_estimator=$(touch {marker})\ntrainer.nnodes=1\n",
    }
    from pathlib import Path

    for name, text in texts.items():
        read_config(name, text)
    assert not Path(marker).exists()


def test_enormous_and_negative_numbers_are_no_facts() -> None:
    reading = read_config("a.py", "TrainingArguments(per_device_train_batch_size=-4, gradient_accumulation_steps=10**9**9)")
    assert reading is not None
    assert "batch.micro_batch" not in {f.field for f in reading.facts}
    assert "batch.gradient_accumulation" not in {f.field for f in reading.facts}


NAMES = st.sampled_from(["a.yaml", "a.json", "a.py", "a.sh", "a.toml", "a.txt", "a.ipynb", ""])
WORDS = st.sampled_from(
    [
        "TrainingArguments(",
        "per_device_train_batch_size=",
        ")",
        "\n",
        " ",
        "{",
        "}",
        "[",
        ":",
        '"',
        "'",
        "#",
        "\\\n",
        "torchrun ",
        "--x ",
        "1e9",
        "stage",
        "zero_optimization",
        "&a",
        "*a",
        "!!x",
        "\t",
        "$(",
        "${a}",
        "é",
        "\x00",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NAMES, st.one_of(st.text(max_size=300), st.lists(WORDS, max_size=60).map("".join)))
def test_no_text_raises(name: str, text: str) -> None:
    read_config(name, text)
