"""The meta run's births and deaths, against the same step really run on the CPU: event by event, and by torch's own profiler.

What legitimately differs on a CPU, each by name, and nothing else is left out:

* ``step counters``: Adam's ``step`` tensors live on the CPU in every run (torch.optim.adam), so a CPU recorder sees them and a GPU's does not.
* ``scalar constants``: Python numbers that become tensors of no dimension (``lift_fresh``, ``scalar_tensor``) live on the CPU.
* ``RNG states``: 5,056 bytes each, kept by checkpoints; on the CPU for CUDA's generator too.
* ``counts of experts``: transformers counts tokens in fp32 on a CPU and in int32 elsewhere (``torch.histc``), of the same size.
* ``image grids``: what is made of an image's height and width (positions, lengths of its patches) stays on the CPU, where it has values, until the
  tower's rotary embedding has made numbers with a fraction of it.
* ``order of the autocast cache``: the casts that end with autocast's context end in the order of a hash table; only deaths next to each other may swap.
"""

from collections.abc import Callable
from itertools import accumulate, groupby
from typing import Any

import pytest

from tests.simulation.conftest import CONFIGS

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

RNG_STATE_BYTES = 5056
SCALARS = ("aten::lift_fresh", "aten::_to_copy", "aten::scalar_tensor")
FULL = {"activations": {"checkpointing": "full", "reentrant": False}}
REENTRANT = {"activations": {"checkpointing": "full", "reentrant": True}}
LORA = {"method": {"kind": "lora", "rank": 4}}
BF16 = {"precision": {"weights": "bf16", "compute": "bf16"}}
EAGER = {"activations": {"attention": "eager"}}
PAIRS = {"objective": "dpo", "framework": {"name": "trl"}, "activations": {"loss": "full-fp32"}}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama bf16": ("llama", BF16),
    "gpt2, dropout": ("gpt2", {}),
    "qwen3, tied": ("qwen3", {}),
    "gemma2, soft caps": ("gemma2", EAGER),
    "mixtral": ("mixtral", BF16),
    "qwen3_moe": ("qwen3_moe", BF16),
    "bert, classes of sequences": ("bert", {"objective": "sft", "model": {"classes": 3}}),
    "llama, classes of sequences": ("llama", {"objective": "sft", "model": {"classes": 2}}),
    "t5": ("t5", {}),
    "accumulation": ("llama", {"batch": {"gradient_accumulation": 2}}),
    "checkpointing": ("llama", FULL),
    "reentrant checkpointing": ("llama", REENTRANT),
    "lora": ("llama", LORA),
    "lora, reentrant checkpointing": ("llama", {**LORA, **REENTRANT}),
    "dpo, copy of the reference": ("llama", {**PAIRS, "reference": "copy"}),
    "dpo, adapters off": ("llama", {**PAIRS, **LORA, "reference": "adapter-off", **BF16}),
    "grpo": ("llama", {**PAIRS, "objective": "grpo", "reference": "none"}),
    "images, trained tower": ("qwen2_vl", {"model": {"vision": {"tokens": 12, "tower": "trained"}}, "batch": {"gradient_accumulation": 2}}),
    "images, frozen tower": ("llava", {"model": {"vision": {"tokens": 4, "tower": "frozen"}}}),
    "images, checkpointing": ("gemma3", {"model": {"vision": {"tokens": 4, "tower": "trained", "tower_checkpointing": "none"}}, **FULL}),
    "text of a model with a tower": ("llava", {"model": {"vision": {"tower": "skipped"}}}),
    "lora beside a frozen tower": ("qwen2_vl", {"model": {"vision": {"tokens": 12, "tower": "frozen"}}, **LORA}),
    "selective checkpointing, by operators": ("llama", {"activations": {"checkpointing": "selective", "selective": {"policy": "op"}}}),
    "selective checkpointing, every second block": ("llama", {"activations": {"checkpointing": "selective", "selective": {"every_nth_layer": 2}}}),
    "frozen but for the last blocks": ("llama", {"model": {"config": {**CONFIGS["llama"], "num_hidden_layers": 3}}, "method": {"kind": "freeze"}, **REENTRANT}),
    "activations on the host": ("llama", {"offload": {"activations": "cpu"}}),
    "checkpoints on the host": ("llama", {"offload": {"activations": "cpu"}, **FULL}),
    "optimizer in backward": ("llama", {"optimizer": {"in_backward": True}}),
    "sgd": ("llama", {"optimizer": {"name": "sgd", "implementation": "for-loop"}}),
}
Row = tuple[str, int, str, tuple[int, ...], str, str, str]


def _rows(recorder: Any) -> list[Row]:
    found = []
    for event in recorder.events:
        s = recorder.storages[event.id]
        scalar = s.shape == () and s.requested <= 8 and (s.phase == "step" or s.operator in SCALARS)
        sizes = (s.operator == "input" and s.shape[1:] == (3,)) or s.operator in ("aten::prod.dim_int", "aten::floor_divide")
        whole = "int" in s.dtype and (".visual" in s.module or sizes)
        grid = whole or (s.module.endswith(".visual.rotary_pos_emb") and s.operator == "aten::_to_copy")
        if not scalar and not grid:  # step counters, scalar constants
            dtype = "int32" if s.module.endswith(".experts") and s.dtype == "float32" and len(s.shape) == 1 else s.dtype  # counts of experts
            found.append(("death" if event.free else "birth", s.requested, s.operator, s.shape, dtype, s.phase, s.module))
    return found


def _unordered_deaths(rows: list[Row]) -> list[Row]:
    return [row for _, run in groupby(rows, key=lambda r: r[0]) for row in (sorted(run) if _ == "death" else run)]


def _peak(rows: list[Row]) -> int:
    return max(accumulate(size if kind == "birth" else -size for kind, size, *_ in rows))


@pytest.mark.parametrize("name", JOBS)
def test_every_birth_and_death_is_that_of_the_real_run(name: str, tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    family, sections = JOBS[name]
    run = tiny(family, **sections)
    simulated, real = _rows(record(run, attention="math")), _rows(record(run, device="cpu", attention="math"))
    assert simulated == real
    assert len(simulated) > 200


@pytest.mark.parametrize(
    ("family", "sections"),
    [("llama", {}), ("gpt2", {}), ("qwen3", {}), ("llama", FULL), ("llama", REENTRANT), ("llama", {**LORA, "precision": {"weights": "bf16"}})],
    ids=["llama", "gpt2", "qwen3", "checkpointing", "reentrant", "lora"],
)
def test_emulated_autocast_is_real_autocast(family: str, sections: dict[str, Any], tiny: Callable[..., Any]) -> None:
    """Eager attention: the CPU's fused math attention is another kernel under autocast."""
    from advisor.simulation.autocast import CPU
    from advisor.simulation.step import record

    mixed = {**sections.get("precision", {}), "mixed": "autocast", "compute": "bf16"}
    run = tiny(family, **{**sections, "precision": mixed, "activations": {**sections.get("activations", {}), **EAGER["activations"]}})
    simulated = _rows(record(run, autocast=CPU))
    real = _rows(record(run, device="cpu", autocast=None))
    assert _unordered_deaths(simulated) == _unordered_deaths(real)
    assert any(row[2] == "aten::_to_copy" and row[4] == "bfloat16" for row in simulated)


LONG = {"batch": {"micro_batch": 2, "seq_len": 192}}  # activations, not the optimizer's step, are the peak


WITNESSED = [("llama", {}), ("mixtral", {}), ("accumulation", {}), ("llama", LONG), ("checkpointing", LONG), ("lora", LONG)]


@pytest.mark.parametrize(("name", "length"), WITNESSED, ids=[f"{name}{', long' * bool(length)}" for name, length in WITNESSED])
def test_the_peak_is_what_the_profiler_saw(name: str, length: dict[str, Any], tiny: Callable[..., Any]) -> None:
    """No dispatch mode is active in this run: an independent witness, which also sees what passes no dispatcher."""
    from torch.profiler import ProfilerActivity, profile

    from advisor.simulation.step import record

    family, sections = JOBS[name]
    run = tiny(family, **{**sections, **({"batch": {**sections.get("batch", {}), **length["batch"]}} if length else {})})
    simulated = record(run, attention="math")
    workspaces = sum(s.requested for s in simulated.storages.values() if s.part == "workspace")  # a GPU's
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        record(run, device="cpu", attention="math", watch=False)
    counters = 4 * sum(1 for s in simulated.storages.values() if s.part == "gradients" and s.step == 0)
    states = RNG_STATE_BYTES * CONFIGS[family].get("num_hidden_layers", 0) if name == "checkpointing" else 0
    more = max(accumulate(_allocations(seen))) - (_peak(_rows(simulated)) - workspaces)
    assert 0 <= more <= counters + states + SCALARS_BYTES


def test_the_gradient_of_indexing_is_one_tensor() -> None:
    """A real run adds it to zeros in place (``_index_put_impl_`` in a profile), which autograd does not do under a dispatch mode."""
    import torch

    from advisor.simulation.recorder import Recorder

    recorder = Recorder()
    with recorder:
        rows = torch.empty(64, 8, device="meta", requires_grad=True)
        picked = rows[torch.empty(64, dtype=torch.long, device="meta")]
        recorder.phase = "backward"
        picked.sum().backward()
    assert [s.operator for s in recorder.storages.values() if s.phase == "backward" and s.shape == (64, 8)] == ["aten::new_zeros"]
    assert rows.grad is not None


SCALARS_BYTES = 64  # Python numbers as tensors within the CPU's kernels


def _allocations(seen: Any) -> list[int]:
    """Signed bytes of the profiler's memory events, in time."""
    from torch._C._profiler import _EventType

    found: list[tuple[int, int]] = []
    nodes = list(seen.profiler.kineto_results.experimental_event_tree())
    while nodes:
        node = nodes.pop()
        nodes.extend(node.children)
        if node.tag == _EventType.Allocation:
            found.append((node.start_time_ns, node.extra_fields.alloc_size))
    return [size for _, size in sorted(found, key=lambda pair: pair[0])]
