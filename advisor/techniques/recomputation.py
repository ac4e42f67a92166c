"""Keeping less for the backward pass: recomputation, fused kernels, tiles."""

from __future__ import annotations

from typing import Any

from advisor.run import Run
from advisor.techniques.conditions import LIGER, LIGER_AS_ONE, LIGER_PARTS, MEGATRON, framework_lacks
from advisor.techniques.curing import cured, ineffective
from advisor.techniques.fused_preference import no_fused_preference
from advisor.techniques.losses import whole_vocabulary
from advisor.techniques.technique import NotApplicable, technique

SELECTIVE = frozenset({"megatron-lm", "megatron-bridge", "torchtitan", "torchtune", "custom"})
ACTIVATIONS = frozenset(
    {"trl", "axolotl", "torchtune", "unsloth", "verl", "llm-foundry", "llama-factory", "deepspeed", "custom", "hf-trainer", "megatron-lm", "megatron-bridge"}
)
DENSE_OFFLOAD = ("attn_norm", "core_attn", "attn_proj", "mlp_norm")  # Megatron --offload-modules
EXPERT_OFFLOAD = ("expert_fc1", "moe_act")
CHECKPOINTS_ONLY = frozenset({"torchtune", "unsloth", "axolotl", "llama-factory"})  # torchtune: activation offloading needs activation checkpointing
TILED = frozenset({"deepspeed", "arctic", "axolotl", "verl", "hf-trainer", "trl", "accelerate", "custom"})


def _by_itself(run: Run) -> str | None:
    if run.job.framework.name == "litgpt":
        return "litgpt checkpoints every block where it divides the model (several devices), and none on one: it has no setting for it"
    return None


@technique("gradient-checkpointing", tier="batch")
def gradient_checkpointing(run: Run) -> Run | NotApplicable:
    """Keep each block's input and recompute the rest in the backward pass."""
    now = run.job.activations.checkpointing
    if now != "full" and (reason := _by_itself(run)):
        return NotApplicable(reason)
    if now == "full":
        broken = any(d.cause == "checkpointing-broken" or ineffective("activations.checkpointing")(d) for d in run.deviations)
        return NotApplicable("checkpointing is configured but has no effect: repair it" if broken else "every block is recomputed already", settled=True)
    # Unsloth's own form ("unsloth", its default) moves what is kept to the host while it computes: unsloth_zoo gradient_checkpointing.py
    beside = {"offload": {"activations": "cpu"}} if run.job.framework.name == "unsloth" else {}
    return run.but(activations={"checkpointing": "full", "selective": None}, **beside)


@technique("selective-checkpointing", tier="batch")
def selective_checkpointing(run: Run) -> Run | NotApplicable:
    """Recompute what is large and cheap (every second block, or attention and activation functions) and keep the rest."""
    if run.job.activations.checkpointing in ("full", "selective"):
        return NotApplicable(f"checkpointing is on already ({run.job.activations.checkpointing})")
    if reason := framework_lacks(run, SELECTIVE, "selective checkpointing"):
        return NotApplicable(reason)
    name = run.job.framework.name
    selective: dict[str, Any] = (
        {"policy": "op"} if name == "torchtitan" else {"ops": ("core_attn", "layernorm", "mlp")} if name in MEGATRON else {"every_nth_layer": 2}
    )
    return run.but(activations={"checkpointing": "selective", "selective": selective})


@technique("repair-checkpointing", tier="batch")
def repair_checkpointing(run: Run) -> Run | NotApplicable:
    """Make configured checkpointing take hold: inputs that require gradients, the non-reentrant form, enabled after adapters are added."""
    freed = cured(run, "checkpointing-broken", also=ineffective("activations.checkpointing"))
    return freed or NotApplicable("checkpointing works, or is not configured")


@technique("fused-kernels", tier="batch", exact=False)
def fused_kernels(run: Run) -> Run | NotApplicable:
    """Norm, rotary embedding and gated MLP as single kernels that save fewer tensors."""
    if reason := framework_lacks(run, LIGER, "Liger's kernels"):
        return NotApplicable(reason)
    if run.job.framework.name == "unsloth":
        return NotApplicable("unsloth patches norm, rotary embedding and MLP with kernels of its own; Liger's would be put over them")
    now = tuple(run.job.activations.kernels or ())
    architecture = run.architecture
    wanted = [k for k in LIGER_PARTS if k not in now]
    if architecture is not None:
        if architecture.norm != "rmsnorm":
            wanted = [k for k in wanted if k != "rmsnorm"]
        if not any(b.gated for b in architecture.blocks):
            wanted = [k for k in wanted if k != "swiglu"]
        if not architecture.rotary:
            wanted = [k for k in wanted if k != "rope"]
    freed = cured(run, also=ineffective("activations.kernels"))
    if not wanted:
        return freed or NotApplicable("the parts that have fused kernels use them already" if now else "this model has no part that Liger fuses")
    if run.job.framework.name in LIGER_AS_ONE and not now and (reason := no_fused_preference(run)):
        return NotApplicable(f"one flag brings these kernels and the fused loss together, and {reason}")
    if run.job.framework.name in LIGER_AS_ONE and not now and whole_vocabulary(run) is None:
        return (freed or run).but(activations={"kernels": LIGER_PARTS, "loss": "fused-linear"}, framework={"keeps_outputs": False})
    return (freed or run).but(activations={"kernels": (*now, *wanted)})


@technique("tiled-mlp", tier="batch")
def tiled_mlp(run: Run) -> Run | NotApplicable:
    """The MLP a tile of the sequence at a time: its width no longer multiplies the whole sequence."""
    if run.job.offload.tiled_mlp:
        return NotApplicable("the MLP is tiled already")
    if reason := framework_lacks(run, TILED, "a tiled MLP"):
        return NotApplicable(reason)
    seq_len = run.job.batch.seq_len
    if run.architecture is not None and seq_len is not None and seq_len < 2 * run.architecture.hidden:
        return NotApplicable(f"tiles are as long as the model is wide ({run.architecture.hidden:,}); a sequence of {seq_len:,} makes no two of them")
    return run.but(offload={"tiled_mlp": True})


@technique("offload-activations", tier="batch")
def offload_activations(run: Run) -> Run | NotApplicable:
    """Copy what the backward pass needs to pinned host memory after the forward pass and back before it is used."""
    job, freed = run.job, cured(run, also=ineffective("offload.activations"))
    if job.offload.activations == "cpu":
        return freed or NotApplicable("activations are offloaded already")
    if reason := framework_lacks(run, ACTIVATIONS, "offloading activations"):
        return NotApplicable(reason)
    if job.framework.name in CHECKPOINTS_ONLY and job.activations.checkpointing != "full":
        return NotApplicable(f"{job.framework.name} offloads what checkpointing keeps: turn checkpointing on first")
    if job.framework.name in MEGATRON:
        if job.activations.checkpointing == "full":
            return NotApplicable("Megatron offloads what single modules keep, and under full recomputation only the blocks' inputs are kept")
        experts = run.architecture is not None and bool(run.architecture.expert_parameters)
        return run.but(offload={"activations": "cpu", "activation_modules": (*DENSE_OFFLOAD, *(EXPERT_OFFLOAD if experts else ()))})
    return run.but(offload={"activations": "cpu"})
