"""Jobs of many kinds, and runs with deviations, for tests of techniques and plans."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from advisor import deviation as dev
from advisor.job import read_job
from advisor.run import Run, resolve

ROOT = Path(__file__).resolve().parents[2]
EVERY_NTH = 9  # of the measured jobs: enough kinds, in bounded time

WRITTEN = """
- {version: 1, model: {name: meta-llama/Llama-3.1-8B}, method: {kind: full}, objective: sft, batch: {micro_batch: 4, seq_len: 4096, gradient_accumulation: 4},
   hardware: {gpu: rtx4090-24gb}, framework: {name: trl}}
- {version: 1, model: {name: meta-llama/Llama-3.1-8B}, method: {kind: lora, rank: 16, base: nf4}, objective: sft,
   batch: {micro_batch: 8, seq_len: 4096, gradient_accumulation: 2}, activations: {checkpointing: none},
   hardware: {gpu: rtx4090-24gb}, framework: {name: trl}}
- {version: 1, model: {name: meta-llama/Llama-3.1-8B}, method: {kind: full}, objective: dpo, reference: copy, precision: {weights: fp32},
   batch: {micro_batch: 2, seq_len: 2048, gradient_accumulation: 4}, parallel: {strategy: ddp, replicate: 4},
   hardware: {gpu: a100-80gb, gpus_per_node: 4}, framework: {name: trl}}
- {version: 1, model: {name: Qwen/Qwen2.5-7B}, method: {kind: full}, objective: grpo, reference: copy, batch: {micro_batch: 4, seq_len: 2048, generations: 8},
   rollout: {engine: vllm, placement: colocated, memory_fraction: 0.5, sleep: none}, parallel: {strategy: zero3, shard: 8},
   hardware: {gpu: a100-80gb, gpus_per_node: 8}, framework: {name: trl, allocator: {expandable_segments: true}}}
- {version: 1, model: {name: meta-llama/Llama-3.1-70B}, method: {kind: full}, objective: sft, batch: {micro_batch: 2, seq_len: 8192, gradient_accumulation: 4},
   parallel: {strategy: zero2, shard: 8}, hardware: {gpu: h100-80gb, gpus_per_node: 8}, framework: {name: hf-trainer}}
- {version: 1, model: {name: meta-llama/Llama-3.1-70B}, method: {kind: full}, objective: pretrain, batch: {micro_batch: 1, seq_len: 8192},
   parallel: {strategy: megatron-distributed, shard: 64, tensor: 8, pipeline: 2, microbatches: 8, sequence: true},
   hardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 128}, framework: {name: megatron-lm}}
- {version: 1, model: {name: meta-llama/Llama-3.1-8B}, method: {kind: lora, rank: 16}, objective: sft,
   batch: {micro_batch: 1, seq_len: 2048, gradient_accumulation: 16},
   hardware: {gpu: a100-80gb}, activations: {checkpointing: full}, framework: {name: hf-trainer}}
- {version: 1, model: {name: meta-llama/Llama-3.1-8B}, method: {kind: lora, rank: 8}, objective: sft,
   batch: {micro_batch: 3, seq_len: 1024, gradient_accumulation: 5},
   activations: {attention: eager}, hardware: {gpu: t4-16gb}, precision: {compute: fp16, weights: fp16}, framework: {name: hf-trainer}}
- {version: 1, model: {name: meta-llama/Llama-3.1-8B}, method: {kind: full}, batch: {micro_batch: 2, seq_len: 2048}, framework: {name: custom}}
- {version: 1, batch: {micro_batch: 2, seq_len: 2048}}
"""


@cache
def written() -> tuple[Run, ...]:
    """Runs of the jobs above."""
    return tuple(resolve(read_job(job)) for job in yaml.safe_load(WRITTEN))


@cache
def measured() -> tuple[Run, ...]:
    """Runs of every so-manieth measured job."""
    found: list[Run] = []
    for file in sorted((ROOT / "knowledge" / "measurements").glob("*.yaml")):
        for entry in yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))[::EVERY_NTH]:
            found.append(resolve(read_job(entry["job"])))
    return tuple(found)


def deviating() -> tuple[Run, ...]:
    """Runs that differ from what is written, one for each form."""
    base = written()[6]
    sharded = written()[4]
    return (
        base.deviating(dev.ineffective("activations.checkpointing", cause="checkpointing-broken")),
        base.deviating(dev.ineffective("activations.attention", cause="attention-fallback")),
        base.deviating(dev.widened("precision.weights", "fp32", cause="default-fp32-load")),
        base.deviating(dev.retained("activations", 3, cause="retained-graph")),
        base.deviating(dev.foreign(20 << 30, cause="other-process")),
        base.deviating(dev.extra("weights", dtype="bf16", cause="duplicate-layout")),
        sharded.deviating(dev.ineffective("parallel.strategy", phases=("load",), cause="sharding-inactive-at-load")),
    )
