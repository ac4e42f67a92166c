"""Training few parameters beside a frozen base, and holding that base in few bits."""

from __future__ import annotations

from typing import Any

from advisor.run import Run
from advisor.techniques.conditions import BITSANDBYTES, PEFT, card_lacks, first, framework_lacks, not_nvidia, trains_adapters
from advisor.techniques.technique import NotApplicable, technique

RANK = 16  # PEFT's examples and most recipes; PEFT's own default is 8
LEAST_RANK = 4
EIGHT_BITS = frozenset({"fp8", "mxfp8", "nvfp4"})
STOCK_PEFT = frozenset({"hf-trainer", "trl", "accelerate", "llama-factory", "axolotl", "custom", "ms-swift"})
OWN_LINES = frozenset(
    {"hf-trainer", "accelerate", "custom", "deepspeed", "fsdp-qlora"}
)  # the base is prepared by the reader's own script; elsewhere the trainer decides


DORA = STOCK_PEFT | {"torchtune", "megatron-bridge"}


def _full_only(run: Run) -> str | None:
    if run.job.objective == "pretrain":
        return "pre-training needs every weight to move: adapters would only learn a low-rank change of random weights"
    if run.job.method.kind not in ("full", "freeze", "galore", "badam", "lisa", "lomo", None):
        return f"the job trains {run.job.method.kind} already"
    strategy = run.job.parallel.strategy or "none"
    if strategy.startswith("megatron") and run.job.framework.name == "megatron-lm":
        return "megatron-lm itself has no adapters (Megatron-Bridge and NeMo have)"
    return None


def _adapted(run: Run, kind: str, **method: Any) -> Run:
    """Weights as the checkpoint has them, no master, no gradient of the base; adapters in fp32 as PEFT makes them."""
    job = run.job
    narrow = "fp16" if card_lacks(run, "bf16") else "bf16"
    settings: dict[str, Any] = {"kind": kind, "rank": RANK, "targets": "all-linear", "adapter_dtype": "fp32", "base": "none", "dropout": 0.0, **method}
    precision = {"weights": narrow, "master": "none", "gradients": "fp32"}
    optimizer: dict[str, Any] = {"name": "adamw", "states": "fp32"} if job.optimizer.name in ("galore-adamw", "apollo", None) else {}
    changes: dict[str, Any] = {"method": settings, "precision": precision}
    if optimizer or job.optimizer.states in ("bf16", "fp16"):
        changes["optimizer"] = {**optimizer, "states": "fp32"}
    if job.reference == "copy":
        changes["reference"] = "adapter-off"
    restored = run.without(lambda d: not (d.kind == "widened" and d.field == "precision.gradients"))
    return restored.but(**changes)


@technique("lora", tier="shard", exact=False, alters_learning=True)
def lora(run: Run) -> Run | NotApplicable:
    """Train two narrow matrices beside each frozen one: gradients and optimizer state only for those."""
    reason = first(framework_lacks(run, PEFT, "LoRA"), _full_only(run))
    return NotApplicable(reason) if reason else _adapted(run, "lora")


@technique("dora", tier="shard", exact=False, alters_learning=True)
def dora(run: Run) -> Run | NotApplicable:
    """LoRA with the magnitude of each output trained apart from its direction: nearer to full training, slower and larger than LoRA."""
    if run.job.method.kind == "lora":
        return NotApplicable("DoRA needs more memory than the LoRA that runs now; it is a choice of quality")
    reason = first(framework_lacks(run, DORA, "DoRA"), _full_only(run))
    return NotApplicable(reason) if reason else _adapted(run, "dora")


@technique("qlora", tier="shard", exact=False, alters_learning=True)
def qlora(run: Run) -> Run | NotApplicable:
    """The frozen base in 4-bit NormalFloat; each matrix is widened for its product, forward and backward."""
    job = run.job
    if job.method.base not in (None, "none"):
        return NotApplicable(f"the base is quantised already ({job.method.base})", settled=True)
    reason = first(
        framework_lacks(run, BITSANDBYTES | {"torchtune"}, "a 4-bit base"),
        not_nvidia(run, "bitsandbytes' NF4"),
        None if trains_adapters(run) else _full_only(run),
    )
    if reason:
        return NotApplicable(reason)
    p = job.parallel
    if p.strategy == "zero3":
        return NotApplicable("ZeRO-3 cannot partition bitsandbytes' packed 4-bit weights; FSDP with a float storage type, or ZeRO-2, can be used")
    if (p.tensor or 1) > 1 or (p.pipeline or 1) > 1:
        return NotApplicable("a base packed by bitsandbytes cannot be split over tensor or pipeline ranks")
    if job.load is not None and job.load.materialise == "meta":
        return NotApplicable("bitsandbytes packs real weights while they are moved to the card; a meta-device load has none")
    if job.precision.compute in EIGHT_BITS:  # a packed matrix is widened to 16 bits for its product
        run = run.but(precision={"compute": "fp16" if card_lacks(run, "bf16") else "bf16", "fp8_recipe": None})
    method: dict[str, Any] = {"base": "nf4", "double_quant": True}
    if job.framework.name is None or job.framework.name in OWN_LINES:
        method["kbit_preparation"] = False  # the lines that the page gives freeze the base without widening the rest of it
    if trains_adapters(run):
        return run.but(method=method)
    return _adapted(run, "lora", **method)


@technique("double-quantization", tier="shard", exact=False)
def double_quantization(run: Run) -> Run | NotApplicable:
    """Quantise the 4-bit blocks' scales too: 0.37 bit a parameter less."""
    method = run.job.method
    if method.base not in ("nf4", "fp4"):
        return NotApplicable("only bitsandbytes' 4-bit base has scales that can be quantised again")
    if method.double_quant:
        return NotApplicable("the scales are quantised already", settled=True)
    if reason := framework_lacks(run, BITSANDBYTES - {"unsloth"}, "the quantisation of its scales"):
        return NotApplicable(reason)
    return run.but(method={"double_quant": True})


@technique("smaller-rank", tier="shard", exact=False, alters_learning=True)
def smaller_rank(run: Run) -> Run | NotApplicable:
    """Halve the adapters' (or the projection's) rank."""
    method = run.job.method
    if method.kind not in ("lora", "dora", "galore"):
        return NotApplicable("the job has no low-rank part")
    if method.rank is None or method.rank // 2 < LEAST_RANK:
        return NotApplicable(f"a rank below {LEAST_RANK} saves next to nothing" if method.rank is not None else "the rank is not known")
    return run.but(method={"rank": method.rank // 2})


@technique("fp8-training", tier="shard", exact=False)
def fp8_training(run: Run) -> Run | NotApplicable:
    """Matrix products in 8-bit floating point: faster on cards that have it; weights and states stay as wide as they were."""
    job = run.job
    if job.precision.compute in EIGHT_BITS:
        return NotApplicable("the job computes in 8 bits or fewer already")
    reason = first(
        not_nvidia(run, "FP8 training in these libraries"),
        card_lacks(run, "fp8"),
        framework_lacks(
            run,
            frozenset(
                {"torchtitan", "torchtune", "megatron-lm", "megatron-bridge", "nemo", "accelerate", "axolotl", "llm-foundry", "custom", "hf-trainer", "trl"}
            ),
            "FP8",
        ),
    )
    if reason:
        return NotApplicable(reason)
    if trains_adapters(run) and job.method.base not in (None, "none"):
        return NotApplicable("a quantised base is widened to 16 bits for its product; FP8 has nothing to work on")
    return run.but(precision={"compute": "fp8", "fp8_recipe": "tensorwise"})
