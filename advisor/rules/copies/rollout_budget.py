"""The engine's memory fraction and what the trainer needs, or leaves on the card while the engine runs, exceed the card together."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import engine_share, waking
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import TRAINING, in_phase
from advisor.run import Run


def _engine_start(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    if failure is None or failure.kind != "engine-start" or dict(failure.details).get("why") == "unbalanced":
        return None
    return "the engine's own pool is full" if dict(failure.details).get("why") == "pool-full" else "the engine failed while it started"


def _rollout_phase(run: Run, evidence: Evidence) -> str | None:
    return "the failure comes while text is generated" if run.job.rollout is not None and in_phase(evidence, "rollout") else None


def _training(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes in the trainer's own step" if in_phase(evidence, *TRAINING) else None


def _apart(run: Run, evidence: Evidence) -> str | None:
    """It wakes to generate, with no weights handed over: what the trainer left on the card is what is in its way."""
    rollout = run.job.rollout
    if rollout is None or waking.hands_over(run, evidence) or waking.trainer_returns(evidence):
        return None
    share = f" its {rollout.memory_fraction:.0%} of the card" if rollout.memory_fraction else " its share"
    return f"the engine wakes to generate, with no hand-over of weights:{share} and what the trainer still holds are too much"


def _returns(run: Run, evidence: Evidence) -> str | None:
    return "the trainer's own state comes back to a card of which the engine holds its share" if run.job.rollout and waking.trainer_returns(evidence) else None


_ACTUAL = pattern(r"actual GPU Utilization = (\d{1,3}(?:\.\d{1,2})?)\s?%")
MOST = 80.0  # per cent of a card that an engine takes for itself: what trains beside it has less than a fifth


def _actual(_run: Run, evidence: Evidence) -> str | None:
    if evidence.failure is None:
        return None
    shares = [(float(m[1]), line.where) for line in evidence.lines if (m := _ACTUAL.search(line.text)) is not None]
    return next((f"the engine takes {share:g} % of the card ({where})" for share, where in shares if share >= MOST), None)


RULE = Rule(
    id="rollout-budget",
    tier="copies",
    title="The engine's memory share and the rest of the job exceed the card together",
    cleared="The engine started and generated within its share.",
    prior=-0.5,
    explains=("load", "rollout", "sync"),
    marks=(
        Mark("rollout-budget-start", 2.0, "engine start", "the reader's class of the failure text", when=_engine_start),
        Mark("rollout-budget-phase", 1.5, "while generating", "the failing phase", when=_rollout_phase),
        Mark("rollout-budget-training", -1.5, "in training", "the failing phase", when=_training),
        Mark(
            "rollout-budget-blocks",
            3.5,
            "what is left for the KV cache within the engine's share is too little",
            "vLLM v1/core/kv_cache_utils.py: 'No available memory for the cache blocks', 'larger than the available KV cache'; SGLang init_memory_pool, "
            "schedule_batch.py alloc_token_slots",
            pattern=(
                r"No available memory for the cache blocks|Not enough memory\. Please try (to )?increas\w+ --mem-fraction-static|"
                r"(?:Prefill|Decode) out of memory\. Try to lower|alloc_req_slots runs out of memory|larger than the (available KV cache memory|"
                r"maximum number of tokens that can be stored in KV cache)"
            ),
        ),
        Mark(
            "rollout-budget-loading",
            4.0,
            "the engine did not fit as it was loaded with its share",
            "unsloth_zoo vllm_utils.py load_vllm: 'Your GPU ran out of memory loading vLLM with standby mode enabled'",
            pattern=r"\bran out of memory loading (?:vLLM|SGLang)\b",
        ),
        Mark(
            "rollout-budget-free",
            3.5,
            "less memory is free than the engine was told to use",
            "vLLM v1/worker/utils.py request_memory: free < total x gpu_memory_utilization",
            pattern=r"on startup is less than desired GPU memory utilization",
            when=lambda run, _: "" if run.job.rollout is not None else None,
        ),
        Mark(
            "rollout-budget-sampler",
            3.5,
            "the engine's own warm-up did not fit beside its cache",
            "vLLM v1/worker/gpu_model_runner.py _dummy_sampler_run: 'CUDA out of memory occurred when warming up sampler'",
            pattern=r"out of memory occurred when warming up (sampler|pooler)",
        ),
        Mark(
            "rollout-budget-capture",
            3.0,
            "capturing CUDA graphs did not fit beside the cache",
            "SGLang model_executor/cuda_graph_runner.py: 'Capture cuda graph failed'",
            pattern=r"Capture cuda ?graph failed|set --mem-fraction-static to a smaller",
        ),
        Mark(
            "rollout-budget-frame",
            3.5,
            "the engine sizes or fills its cache",
            "vLLM worker.determine_available_memory, profile_run, initialize_kv_cache; SGLang init_memory_pool; transformers generation/continuous_batching "
            "PagedAttentionCache: a share of the free memory at once",
            pattern=(
                r"_initialize_kv_caches|determine_(available_memory|num_available_blocks)|raise_if_cache_size_invalid|profile_run|init_memory_pool|"
                r"initialize_kv_cache|_dummy_sampler_run|capture_model|_allocate_kv_cache|_init_cache_engine|cache_engine\.py:__init__|"
                r"continuous_batching/cache\.py:__init__"
            ),
            on="frame",
        ),
        Mark(
            "rollout-budget-wake",
            2.0,
            "the engine can not take its memory back when it wakes",
            "vLLM device_allocator/cumem.py wake_up maps what sleep gave back: what the trainer still holds is missing",
            pattern=r"cumem\.py:wake_up|create_and_map",
            on="frame",
        ),
        Mark(
            "rollout-budget-apart",
            2.5,
            "the engine wakes only to generate",
            "NeMo-RL algorithms/grpo.py: without a refit prepare_for_generation maps weights and cache at once",
            pattern=r"\bwake_up\b|create_and_map",
            when=_apart,
        ),
        Mark(
            "rollout-budget-actual",
            3.0,
            "the engine takes most of the card",
            "unsloth_zoo/vllm_utils.py load_vllm: 'with actual GPU Utilization = n%', standby raises it above what was asked",
            pattern=r"actual GPU Utilization = ",
            when=_actual,
        ),
        Mark("rollout-budget-returns", 2.5, "the trainer comes back", "the frames of a move to the device outside the engine", when=_returns),
    ),
    form=engine_share.form,
    remedies=("rollout-fraction", "rollout-sleep", "separate-rollout"),
    fires=(
        Example(
            "the engine wakes only to generate",
            job=job(
                "Qwen/Qwen3-8B",
                objective="grpo",
                framework="{name: nemo}",
                rollout="{engine: vllm, placement: colocated, memory_fraction: 0.85, sleep: level-1}",
            ),
            text=trace(
                "nemo_rl/models/generation/vllm/vllm_worker.py|wake_up|self.llm.wake_up()", "vllm/device_allocator/cumem.py|wake_up|create_and_map(handle)"
            )
            + "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n",
        ),
        Example(
            "no room for the cache",
            job=job("Qwen/Qwen2.5-7B", objective="grpo", rollout="{engine: vllm, placement: colocated, memory_fraction: 0.3}"),
            text="ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n",
        ),
    ),
    quiet=(Example("no generation", job=job(objective="sft"), text=oom("512.00 MiB", allocated=76.5)),),
)
