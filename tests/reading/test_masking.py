"""What identifies a person or opens a door does not get past reading; what says which library failed does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.reading import read
from advisor.reading.masking import mask


@pytest.mark.parametrize(
    ("text", "gone", "kept"),
    [
        ("hub token hf_AbCdEfGhIjKlMnOpQrStUv", "hf_AbC", "hub token"),
        ("OPENAI_API_KEY=sk-proj-abcdefghijklmnop1234", "sk-proj", "OPENAI_API_KEY="),
        ("aws AKIAIOSFODNN7EXAMPLE", "AKIAIOSF", "aws"),
        ("export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef", "WANDB_API_KEY"),
        ("http://alice:hunter22@proxy.internal:3128/x", "hunter22", ":3128"),
        ("git+https://bob@git.example.org/repo", "bob@", "git+https"),
        ("write to jane.doe@example.org now", "jane.doe", "write to"),
        ('File "/home/alice/project/train.py", line 3', "alice", "project/train.py"),
        ("/Users/alice/models/Llama-3.1-8B", "alice", "models/Llama-3.1-8B"),
        (r"C:\Users\alice\train.py", "alice", "train.py"),
        ("/data/home/alice/ckpt", "alice", "ckpt"),
        ("MASTER_ADDR=node17.hpc.example", "node17", "MASTER_ADDR"),
        ("node0:4411:5120 [3] NCCL WARN x", "node0", ":4411:5120 [3] NCCL WARN"),
        ("connect to 10.24.3.17:29500 failed", "10.24.3.17", ":29500 failed"),
        ("ip-10-0-3-12: started", "ip-10-0", "started"),
        ("alice@gpu-box:~/work$ python train.py", "alice", "python train.py"),
        ("pod trainer-5d9f7c8b6d-x2x4z started", "5d9f7c8b6d", "started"),
        ("train.py --hub_token abcdef123456 --lr 1", "abcdef123456", "--lr 1"),
        ("password: hunter2secret", "hunter2secret", "password"),
        ("user_name='alice.b'", "alice.b", "user_name"),
    ],
)
def test_masked(text: str, gone: str, kept: str) -> None:
    masked = mask(text)
    assert gone not in masked and kept in masked


@pytest.mark.parametrize(
    "text",
    [
        'File "/usr/lib/python3/dist-packages/torch/optim/adamw.py", line 173, in step',
        "nvidia-cudnn-cu12==9.1.0.70",
        "num_key_value_heads: 8",
        "tokenizer: meta-llama/Llama-3.1-8B",
        "max_new_tokens: 1024",
        "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables",
        "0.25 GiB already allocated; 28.56 MiB free",
        "sequence_len: 2048",
        "keys: values",
        "localhost:29500",
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        "name: grpo-qwen3-235b-32n4g-async-8off",
        "resources_servers:\n  genrm_compare:\n    x: 1",
        "api_key:\n  name: wandb_settings",
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct",
    ],
)
def test_untouched(text: str) -> None:
    assert mask(text) == text


@settings(deadline=None)
@given(st.text(max_size=400))
def test_masking_keeps_line_numbers_and_settles(text: str) -> None:
    masked = mask(text)
    assert masked.count("\n") == text.count("\n") or "PRIVATE KEY" in text


def test_nothing_secret_reaches_the_evidence() -> None:
    text = (
        'hub_token: hf_AbCdEfGhIjKlMnOpQrStUv\nTraceback (most recent call last):\n  File "/home/alice/t.py", line 1, in f\n    '
        'login("alice@example.org")\nValueError: alice at 10.1.2.3\n'
    )
    reading = read([("/home/alice/log.txt", text)])
    shown = repr(reading)
    for secret in ("hf_AbC", "alice@example.org", "/home/alice", "10.1.2.3"):
        assert secret not in shown
