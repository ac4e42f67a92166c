"""Every family of transformers, made small: parameters against the built model, the estimate against the probe.

``python -m tests.simulation.families [PATTERN]`` runs all of them and prints a line each; ``test_families`` a sample.
A config is the class's own defaults with sizes made small, so a family that is new here needs no entry unless its class checks how sizes agree.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from msgspec.structs import replace

from advisor.arithmetic import estimate
from advisor.arithmetic.blocks.scans import PYTHON
from advisor.job import read_job
from advisor.ledger import Ledger
from advisor.run import Run, resolve
from advisor.simulation.probing import asked_of
from advisor.simulation.sessions import Session

WITHIN = 0.03
SECONDS = 120
HIDDEN, INNER, VOCABULARY, LAYERS, HEADS, HEAD, EXPERTS, CHOSEN, EXPERT_INNER = 1024, 2816, 4096, 4, 8, 128, 8, 2, 512
SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "word_embed_proj_dim", "embedding_size"), HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "decoder_layers", "encoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "encoder_attention_heads"), HEADS),
    **dict.fromkeys(("head_dim", "kv_channels", "attention_head_dim", "d_kv"), HEAD),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size", "block_ff_dim"), INNER),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "top_k_experts"), CHOSEN),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), EXPERT_INNER),
    "first_k_dense_replace": 1, "num_dense_layers": 1, "n_group": 1, "topk_group": 1, "mamba_num_heads": 32, "mamba_n_heads": 32, "mamba_head_dim": 64,
    "mamba_d_head": 64,
}  # fmt: skip
FEWER = {"num_experts_per_tok", "moe_k", "top_k_experts", "first_k_dense_replace", "num_dense_layers", "num_experts", "num_local_experts"}
MORE: dict[str, dict[str, Any]] = {  # where a class checks how its sizes agree, or leaves open what every config.json says
    "falcon_h1": {"mamba_d_ssm": 2048}, "gpt_neo": {"attention_types": [[["global", "local"], 2]]}, "deepseek_v2": {"num_experts_per_tok": CHOSEN},
    "hunyuan_v1_dense": {"head_dim": HEAD}, "ministral": {"head_dim": HEAD}, "nemotron": {"head_dim": HEAD, "num_key_value_heads": 4},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"]}, "gemma3_text": {"sliding_window": 512},
    "gemma3n_text": {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0]},
    "dots1": {"n_routed_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "n_shared_experts": 1},
}  # fmt: skip
WRITTEN = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "n_embd", "n_layer", "n_head", "d_model", "n_layers", "n_heads",
           "vocab_size", "intermediate_size", "num_layers", "num_heads", "d_ff", "head_dim")  # fmt: skip
SAMPLE = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gemma4_text", "phi", "phi3", "granite", "smollm3", "olmo", "olmo2", "olmo3",
    "exaone4", "cohere", "cohere2", "nemotron", "arcee", "apertus", "starcoder2", "stablelm", "glm", "glm4", "ernie4_5", "seed_oss", "helium", "gpt2",
    "gpt_neox", "gptj", "falcon", "bloom", "opt", "mpt", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared", "phimoe", "gpt_oss",
    "glm4_moe", "llama4_text", "minimax_m2", "ernie4_5_moe", "deepseek_v2", "glm4_moe_lite", "lfm2", "lfm2_moe", "qwen3_next", "bamba", "granitemoehybrid",
    "gpt_bigcode", "gpt_neo", "codegen", "gemma3n_text", "dots1", "exaone_moe", "hy_v3", "sarvam_moe", "mellum", "flex_olmo",
    "qwen3_5_text", "qwen3_5_moe_text", "falcon_h1", "vaultgemma", "minicpm3", "solar_open",
)  # fmt: skip
IN_PYTHON = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "falcon_h1", "bamba", "granitemoehybrid"})  # the probe's machine has no fused scans
RESIDUALS: dict[str, tuple[float, str]] = {}  # estimate over probe, less one, of what is not told right, and why


def config(kind: str) -> dict[str, Any]:
    """A small config of a family as ``save_pretrained`` writes it: sizes, and what differs from the class's defaults."""
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    cls = transformers.CONFIG_MAPPING[kind]
    known = cls().to_dict()
    small = {name: value for name, value in _small(known).items() if name not in (getattr(cls, "attribute_map", None) or {})}
    made = transformers.AutoConfig.for_model(kind, **{**small, **MORE.get(kind, {})})
    out: dict[str, Any] = json.loads(made.to_json_string(use_diff=True))
    full = json.loads(made.to_json_string(use_diff=False))
    for name in ("transformers_version", "architectures", "time_step_limit"):  # the last is infinite, which JSON has no word for
        out.pop(name, None)
    return {**{name: full[name] for name in WRITTEN if full.get(name) is not None}, **out, "model_type": kind}


def _small(known: dict[str, Any]) -> dict[str, Any]:
    heads = known.get("num_attention_heads") or known.get("n_head") or 0
    found: dict[str, Any] = {}
    for name, value in known.items():
        if isinstance(value, list) and len(value) == known.get("num_hidden_layers") and name != "layer_types":
            found[name] = value[:LAYERS]
        elif isinstance(value, int) and not isinstance(value, bool):
            if name in ("num_key_value_heads", "num_kv_heads", "n_head_kv"):
                found[name] = 1 if value == 1 else HEADS // 2 if value < heads else HEADS
            elif name.endswith("_token_id") and value >= VOCABULARY:
                found[name] = 7
            elif name in SIZES:
                found[name] = min(value, SIZES[name]) if name in FEWER else SIZES[name]
    return found


def built(kind: str) -> int:
    """Elements of the causal language model that transformers builds of :func:`config` on the meta device."""
    import torch
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config(kind)))
    return sum(parameter.numel() for parameter in model.parameters())


def run_of(kind: str, **sections: Any) -> Run:
    """Whole training in bf16 of a family, four rows of 1,024 tokens, SDPA, nothing recomputed; sections are merged over it."""
    job: dict[str, Any] = {
        "version": 1, "model": {"config": config(kind)}, "method": {"kind": "full"}, "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"},
        "optimizer": {"name": "adamw", "implementation": "foreach"}, "batch": {"micro_batch": 4, "seq_len": 1024, "packed": True},
        "activations": {"checkpointing": "none", "attention": "sdpa"}, "hardware": {"gpu": "h100-80gb"},
        "framework": {"name": "hf-trainer", "versions": {name: metadata.version(name) for name in ("torch", "transformers", "peft", "accelerate")}},
    }  # fmt: skip
    for section, values in sections.items():
        job[section] = {**job.get(section, {}), **values}
    run = resolve(read_job(job))
    if kind not in IN_PYTHON:
        return run
    activations = replace(run.job.activations, kernels=(*(run.job.activations.kernels or ()), PYTHON))
    return replace(run, job=replace(run.job, activations=activations))


def probed(session: Session, kind: str, **sections: Any) -> Ledger:
    """What the probe sees of :func:`run_of`; it runs transformers' own code in Python, whatever the estimate takes."""
    run = run_of(kind, **sections)
    kernels = tuple(name for name in run.job.activations.kernels or () if name != PYTHON)
    run = replace(run, job=replace(run.job, activations=replace(run.job.activations, kernels=kernels)))
    return asked_of(session, run, timeout=SECONDS, say=lambda _: None).ledger


def off(session: Session, kind: str, **sections: Any) -> float:
    """Estimate over probe, less one, of the peak."""
    seen = probed(session, kind, **sections)
    return estimate(run_of(kind, **sections)).peak().bytes / seen.peak().bytes - 1


def lines(pattern: str = "") -> Iterator[str]:
    """A line a family of the causal language models: parameters, difference, or why there is none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from advisor.architecture import read

    with Session() as session:
        for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            if pattern not in kind:
                continue
            said = [kind]
            for what in (lambda k: f"{read(config(k)).parameters - built(k):+,d} parameters", lambda k: f"{off(session, k):+.1%}"):
                try:
                    said.append(what(kind))
                except Exception as error:  # a class, or a model's own code, may refuse small sizes in any way
                    said.append(f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}")
            yield "; ".join(said)


if __name__ == "__main__":
    for line in lines(*sys.argv[1:2]):
        print(line, flush=True)
