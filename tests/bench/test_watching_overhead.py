"""What watching adds to a long run, in CPU time and memory, on a small Llama: default at most 3 %, full at most 30 %, 50 MB.

Some seconds of steps say nothing of a long run, since the first four are observed whatever they cost: an ordinary run of the tests holds the memory
only, and that later steps are mostly left alone at the default level. ``ADVISOR_QUIET=1`` (a quiet core, ``make bench``) holds the time.
"""

import gc
import os
import time
from collections.abc import Callable
from statistics import median

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
psutil = pytest.importorskip("psutil", reason="psutil is not installed")
from advisor.measurement import watch  # noqa: E402

QUIET = os.environ.get("ADVISOR_QUIET") == "1"
STEPS, ROUNDS = (400, 3) if QUIET else (24, 1)
LIMITS = {"default": 1.03, "full": 1.30}


def trainer(hidden: int) -> Callable[[int], float]:
    """Runs steps; the CPU seconds that they took, so that other processes of the machine do not count."""
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, vocab_size=2048
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def steps(number: int) -> float:
        began = time.process_time()
        for _ in range(number):
            tokens = torch.randint(0, 2048, (4, 64))
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.process_time() - began

    steps.model, steps.optimizer = model, optimizer  # type: ignore[attr-defined]
    return steps


@pytest.mark.parametrize("level", ["default", "full"])
@pytest.mark.parametrize("hidden", [128, 256])
def test_overhead(level: str, hidden: int) -> None:
    torch.set_num_threads(1)
    steps = trainer(hidden)
    steps(5)
    plain, watched, memory = [], [], 0
    process = psutil.Process()
    for _ in range(ROUNDS):
        gc.collect()
        plain.append(steps(STEPS))
        before = process.memory_info().rss
        began = time.process_time()
        with watch(steps.model, steps.optimizer, level=level) as seen:  # type: ignore[attr-defined,arg-type]
            steps(STEPS)
        watched.append(time.process_time() - began)
        memory = max(memory, process.memory_info().rss - before)
    share = median(w / p for w, p in zip(watched, plain, strict=True))
    print(f"{level}, hidden {hidden}: {median(plain) / STEPS * 1e3:.1f} ms a step, x{share:.3f}, {memory / 1e6:.1f} MB")
    assert memory <= 50_000_000
    if level == "default":
        assert seen.observed <= STEPS / 2
    if QUIET:
        assert share <= LIMITS[level]
