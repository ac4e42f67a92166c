"""Conditions that several techniques share: what the card can do, which framework and version, how the ranks are laid out.

Each answers with the reason why not, or ``None``: nothing against it is known. An unknown card or framework is no reason.
"""

from __future__ import annotations

import re
from typing import Any

from advisor.run import Run
from advisor.spoken import with_article

DEEPSPEED = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "accelerate", "deepspeed", "openrlhf", "ms-swift", "colossalchat", "arctic", "custom"})
ACCELERATE = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "accelerate", "ms-swift", "fsdp-qlora", "custom"})
LIGER = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "accelerate", "ms-swift", "verl", "openrlhf", "unsloth", "custom"})
LIGER_PARTS = ("rmsnorm", "swiglu", "rope")
# One flag (use_liger_kernel) brings the fused loss and the fused parts together (liger_kernel.transformers.apply_liger_kernel_to_*).
# So does AutoLigerKernelForCausalLM (liger_kernel.transformers.auto_model), the line of a script of one's own.
LIGER_AS_ONE = frozenset({"hf-trainer", "trl", "llama-factory", "ms-swift", "openrlhf", "verl", "accelerate", "custom", None})
MEGATRON = frozenset({"megatron-lm", "megatron-bridge", "nemo"})
FSDP_NATIVE = frozenset({"torchtitan", "torchtune", "litgpt", "verl", "llm-foundry", "nemo"})
PEFT = ACCELERATE | {"unsloth", "openrlhf", "verl", "torchtune", "litgpt", "nemo", "megatron-bridge", "llm-foundry", "deepspeed", "colossalchat"}

SCRIPTED = frozenset({"hf-trainer", "trl", "accelerate", "custom", "deepspeed", "unsloth", "fsdp-qlora"})  # trained by a script of one's own
SYNCS = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "accelerate", "custom"})  # accelerate's sync_each_batch can be set
SHARDED_SAVE = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "accelerate", "deepspeed", "ms-swift", "llm-foundry", "custom"})
BITSANDBYTES = ACCELERATE | {"unsloth", "openrlhf", "litgpt", "colossalchat", "deepspeed"}  # 4-bit bases through bitsandbytes, with double quantization
# Frameworks whose settings name the optimizer freely; the others have Adam and little else.
OPTIMIZERS = ACCELERATE | {"unsloth", "torchtune", "litgpt", "llm-foundry", "deepspeed"}

ZERO = frozenset({"zero1", "zero2", "zero3"})
FSDP = frozenset({"fsdp1", "fsdp2"})
WHOLE_PARAMETERS = frozenset({"none", "ddp", "zero1", "zero2", "megatron", "megatron-distributed"})
DIVIDED_PARAMETERS = frozenset({"zero3", "fsdp1", "fsdp2", "megatron-fsdp"})
QUANTIZED_BNB = frozenset({"nf4", "fp4", "int8"})
ADAPTERS = frozenset({"lora", "dora"})

# Lowest compute capability at which a feature exists (TransformerEngine quantization.py, flash-attention README, PyTorch sdp_utils.cpp)
LEAST_SM = {"bf16": 80, "fp8": 89, "flash_2": 80, "flash_3": 90, "sdpa_flash": 80, "mxfp8": 100, "nvfp4": 100}
NAMES = {
    "bf16": "bfloat16 tensor cores",
    "fp8": "FP8 tensor cores",
    "flash_2": "FlashAttention 2",
    "flash_3": "FlashAttention 3",
    "sdpa_flash": "flash kernel of PyTorch",
    "mxfp8": "MXFP8",
    "nvfp4": "NVFP4",
}  # fmt: skip


def card_lacks(run: Run, feature: str) -> str | None:
    """Why the card cannot do ``feature`` (a key of :data:`LEAST_SM`): the catalogue's word first, else the compute capability."""
    card = run.card
    if card is None:
        return None
    known = card.supports.get(feature)
    if known is None and card.sm is not None and feature in LEAST_SM:
        known = card.sm >= LEAST_SM[feature] and not (feature == "mxfp8" and card.sm >= 120)
    if known is False:
        at = f" (compute capability {card.capability})" if card.capability else ""
        least = LEAST_SM.get(feature)
        return f"the {card.name}{at} has no {NAMES.get(feature, feature)}" + (f"; it needs {least // 10}.{least % 10} or later" if least else "")
    return None


def not_nvidia(run: Run, what: str) -> str | None:
    """Why a CUDA-only library does not run here."""
    if run.card is not None and run.card.vendor.lower() not in ("nvidia", ""):
        return f"{what} is made for NVIDIA cards, and the job runs on {with_article(run.card.name)}"
    return None


def on_windows(run: Run, what: str) -> str | None:
    """Why PyTorch's CUDA driver API parts do not run here (c10/cuda/driver_api.cpp is built on ``dlopen``; CUDAAllocatorConfig.h)."""
    return f"PyTorch has no {what} on Windows: it warns and goes on without" if "windows" in (run.job.framework.versions or {}) else None


def framework_lacks(run: Run, able: frozenset[str], what: str) -> str | None:
    """Why the named framework cannot do ``what``; an unnamed framework can."""
    name = run.job.framework.name
    return f"{name} has no setting for {what}" if name is not None and name not in able else None


def version(run: Run, package: str) -> tuple[int, ...] | None:
    """A package's version as numbers (``2.6.0+cu124`` is ``(2, 6, 0)``); ``None`` where it is not known."""
    text = (run.job.framework.versions or {}).get(package)
    if text is None:
        return None
    numbers = re.findall(r"\d+", str(text).partition("+")[0])[:3]
    return tuple(int(n) for n in numbers) or None


def older(run: Run, package: str, least: tuple[int, ...]) -> str | None:
    """Why a package is too old."""
    have = version(run, package)
    if have is None or have >= least:
        return None
    return f"{package} {'.'.join(map(str, have))} is older than {'.'.join(map(str, least))}, which brought it"


def first(*reasons: str | None) -> str | None:
    """The first reason that is one."""
    return next((r for r in reasons if r), None)


def strategy(run: Run) -> str:
    """How the ranks really work together: an ineffective strategy is plain data parallelism."""
    return run.effective.parallel.strategy or "none"


def data_ranks(run: Run) -> int:
    """Ranks that see different samples: shard x replicate over the context ranks."""
    p = run.job.parallel
    return max(1, (p.shard or 1) * (p.replicate or 1) // (p.context or 1))


def cards_present(run: Run) -> int:
    """GPUs that the job uses, or that its hardware section says are there."""
    hardware = run.job.hardware
    return max(run.world, (hardware.gpus_per_node or 1) * (hardware.nodes or 1))


def trains_adapters(run: Run) -> bool:
    """Whether only adapters beside a frozen base are trained."""
    return run.job.method.kind in ADAPTERS


def colocated(run: Run) -> bool:
    """Whether a rollout engine shares the trainer's cards."""
    return run.job.rollout is not None and run.job.rollout.placement != "separate"


def sleeping_engine(run: Run) -> bool:
    """A colocated vLLM in sleep mode: its own allocator (cumem) refuses expandable segments."""
    r = run.job.rollout
    return r is not None and r.placement != "separate" and r.engine != "hf" and r.sleep in ("level-1", "level-2")


def is_skyrl(run: Run) -> bool:
    """Whether the settings are SkyRL's, which is one of the frameworks that a job calls custom."""
    named = run.facts.get("framework.name")
    return run.job.framework.name == "custom" and named is not None and "skyrl" in f"{named.why} {named.text}".lower()


def allocator_with(run: Run, **settings: Any) -> dict[str, Any]:
    """The allocator's settings with some changed."""
    return {**(run.job.framework.allocator or {}), **settings}
