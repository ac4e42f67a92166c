"""What watching adds to a long run, in CPU time and memory, on a small Llama: default at most 3 %, full at most 30 %, 50 MB.

A machine's own speed drifts by more than that within a minute, so a watched model and its unwatched twin step in turn, and the watcher's clock
stands while the twin runs: its share of the time is the watched model's alone. Steps that nothing observes count by their median, since a machine
that halts for a second halts in any of them; observed ones by their sum.

Some seconds of steps say nothing of a long run, since the first four are observed whatever they cost: an ordinary run of the tests holds the memory
only, and that later steps are mostly left alone at the default level. ``ADVISOR_QUIET=1`` (a quiet core, ``make bench``) holds the time.
"""

import gc
import os
import time
from statistics import median

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
psutil = pytest.importorskip("psutil", reason="psutil is not installed")
from advisor.measurement import watch  # noqa: E402
from advisor.measurement.watching import pacing, session, stepping  # noqa: E402

QUIET = os.environ.get("ADVISOR_QUIET") == "1"
STEPS = 400 if QUIET else 24
LIMITS = {"default": 1.03, "full": 1.30}


class Trainer:
    """A small model that trains step by step."""

    def __init__(self, hidden: int) -> None:
        config = transformers.LlamaConfig(
            hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, vocab_size=2048
        )
        self.model = transformers.LlamaForCausalLM(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self) -> float:
        """One step; the CPU seconds that it took, so that other processes of the machine do not count."""
        began = time.process_time()
        tokens = torch.randint(0, 2048, (4, 64))
        self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - began


class Clock:
    """Stands while the twin runs."""

    def __init__(self) -> None:
        self.stood = 0.0

    def monotonic(self) -> float:
        """Seconds without those."""
        return time.monotonic() - self.stood


@pytest.mark.parametrize("level", ["default", "full"])
@pytest.mark.parametrize("hidden", [128, 256])
def test_overhead(level: str, hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    clock = Clock()
    for module in (pacing, session, stepping):
        monkeypatch.setattr(module, "time", clock)
    twin, model = Trainer(hidden), Trainer(hidden)
    for _ in range(5):
        twin.step()
        model.step()
    gc.collect()
    plain, left, observed = list[float](), list[float](), list[float]()
    before = psutil.Process().memory_info().rss
    began = time.process_time()
    with watch(model.model, model.optimizer, level=level) as seen:  # type: ignore[arg-type]
        around = time.process_time() - began
        for _ in range(STEPS):
            number = seen.observed
            took = model.step()
            (observed if seen.observed > number else left).append(took)
            began = time.monotonic()
            plain.append(twin.step())
            clock.stood += time.monotonic() - began
        began = time.process_time()
    around += time.process_time() - began
    memory = psutil.Process().memory_info().rss - before
    usual = median(plain)
    share = (around + sum(observed) + median(left) * len(left)) / (usual * STEPS)
    print(f"{level}, hidden {hidden}: {usual * 1e3:.1f} ms a step, {len(observed)} observed, x{share:.3f}, {memory / 1e6:.1f} MB")
    assert memory <= 50_000_000
    if level == "default":
        assert seen.observed <= STEPS / 2
    if QUIET:
        assert share <= LIMITS[level]
