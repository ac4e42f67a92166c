"""A frozen reference, reward or critic model is resident beside the policy."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import remainder
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share_marks
from advisor.rules.situation import ADAPTER, ONLINE, PREFERENCE, TRAINING, builds_second, in_phase, loads_weights, sharded
from advisor.run import Run


def _applies(run: Run, evidence: Evidence) -> str | None:
    objective = run.job.objective
    if builds_second(evidence):
        return None  # the frames make one, whatever the texts let one take for the objective
    if objective is not None and objective not in PREFERENCE | ONLINE:
        return f"the objective {objective} uses no reference model"
    return None


def _resident(run: Run, _evidence: Evidence) -> str | None:
    held = [f"a {name} model" for name in ("reference", "reward", "critic") if getattr(run.job, name) == "copy"]
    return f"the job keeps {' and '.join(held)} beside the policy" if held and run.job.objective in PREFERENCE | ONLINE else None


def _replicated(run: Run, _evidence: Evidence) -> str | None:
    """Under ZeRO-1 or 2 the reference is prepared as stage 0: whole on every rank."""
    if run.job.reference == "copy" and run.job.parallel.strategy in ("zero1", "zero2", "ddp"):
        return f"under {run.job.parallel.strategy} the reference is whole on every rank"
    return None


def _loaded_twice(run: Run, evidence: Evidence) -> str | None:
    """from_pretrained shows one bar for each model that it loads."""
    bars = [
        line
        for line in evidence.lines
        if ("Loading checkpoint shards" in line.text or "Loading weights" in line.text) and "100%" in line.text and line.rank in (None, 0)
    ]
    done = max(len(bars), max((line.count for line in bars), default=0))
    return f"{done} models were loaded to the end" if done >= 2 and run.job.objective in PREFERENCE | ONLINE else None


def _needless(run: Run, _evidence: Evidence) -> str | None:
    """Adapters are trained, so the base is the reference already; the script passes a model of its own all the same."""
    fact = run.facts.get("reference")
    passed = fact is not None and fact.kind in ("read", "stated") and run.job.reference == "copy" and run.job.method.kind in ADAPTER
    return "a reference model is given although the base with its adapters off is one: the trainer keeps what it is given" if passed else None


PASSED = r"\bref_model\s?=\s?(?:AutoModel\w*\.from_pretrained|copy\.deepcopy|create_reference_model)"
_PASSED = pattern(PASSED)


def _base_is_reference(run: Run, evidence: Evidence) -> str | None:
    if builds_second(evidence) or any(_PASSED.search(line.text) for line in evidence.lines):
        return None  # whatever the method could do without, a second model is being made
    return "with adapters, the base itself is the reference" if run.job.method.kind in ADAPTER and run.job.reference != "copy" else None


def _being_loaded(_run: Run, evidence: Evidence) -> str | None:
    return (
        "weights are being read for a second model, while those of the first are on the card" if builds_second(evidence) and loads_weights(evidence) else None
    )


def _form(run: Run, evidence: Evidence) -> Form | None:
    if _needless(run, evidence) is None:
        return None
    title = "A reference model is passed and kept beside a base that, its adapters off, is the same model"
    return Form(title, ("adapter-reference", "precompute-reference", "offload-reference"))


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    if run.job.objective not in PREFERENCE | ONLINE or run.job.reference in (None, "copy") or run.job.method.kind in ADAPTER:
        return None
    return run.but(reference="copy")


RULE = Rule(
    id="reference-copy",
    tier="copies",
    title="A second, frozen model is resident beside the one that is trained",
    cleared="No reference, reward or critic copy is resident.",
    prior=-1.0,
    applies=_applies,
    marks=(
        Mark(
            "reference-copy-resident",
            1.5,
            "a copy is kept",
            "TRL DPOTrainer, GRPOTrainer: create_model_from_path or create_reference_model unless PEFT or beta is 0",
            when=_resident,
        ),
        Mark(
            "reference-copy-replicated", 1.5, "whole on each rank", "trl/models/utils.py prepare_deepspeed: any stage but 3 becomes stage 0", when=_replicated
        ),
        Mark(
            "reference-copy-loaded-twice",
            3.5,
            "two loads",
            "transformers modeling_utils shows 'Loading checkpoint shards' (5: 'Loading weights') once for each from_pretrained",
            when=_loaded_twice,
        ),
        Mark(
            "reference-copy-frame",
            3.0,
            "the failure comes while the second model is built or asked",
            "trl create_reference_model, prepare_deepspeed, compute_reference_log_probs; verl fsdp_workers ref role",
            pattern=(
                r"sync_target_model|create_reference_model|compute_ref(erence)?_log_probs?|\b(?:ref\w*_model|ref|\w+_ref|reference)\s*=|self\.ref_model\(|dpo_trainer\.py:(null_ref_context|"
                r"compute_reference)"
            ),
            on="frame",
        ),
        Mark(
            "reference-copy-loads",
            2.5,
            "a second set of weights is being read",
            "trl create_model_from_path, LLaMA-Factory create_ref_model: from_pretrained for the reference, after the policy's",
            when=_being_loaded,
        ),
        Mark(
            "reference-copy-shown",
            2.0,
            "a reference model is there",
            "trl trainers keep it as ref_model, verl as ref_module_fsdp, OpenRLHF as initial_model: None where there is none",
            pattern=r"\b(?:ref_model|ref_module\w*|reference_model|initial_model)\b\W{0,3}(?:is not None|[\w.()]*\b(?:cuda|device|on gpu|GiB|GB|resident)\b)",
        ),
        Mark(
            "reference-copy-remainder",
            1.0,
            "a copy more",
            "the estimate's ledger against the printed counters",
            when=lambda run, e: remainder.matching(run, e, "weights-copy") if run.job.objective in PREFERENCE | ONLINE else None,
        ),
        Mark(
            "reference-copy-adapter",
            -2.5,
            "adapters",
            "with PEFT the base with adapters switched off is the reference",
            when=_base_is_reference,
        ),
        Mark(
            "reference-copy-passed",
            3.0,
            "a second model is passed as the reference",
            "trl DPOTrainer.__init__: a ref_model that is given is prepared and kept beside the model, whole where nothing divides it",
            pattern=PASSED,
            on="line",
            when=lambda run, e: "" if run.job.parallel.strategy not in ("zero3", "fsdp1", "fsdp2") and in_phase(e, "load", *TRAINING, None) else None,
        ),
        Mark(
            "reference-copy-needless",
            2.0,
            "passed beside adapters",
            "trl DPOTrainer, KTOTrainer: a ref_model that is passed is kept, PEFT or not (DPO with a peft_config: since 0.28, or force_use_ref_model)",
            when=_needless,
        ),
        Mark(
            "reference-copy-sharded",
            -0.7,
            "divided",
            "stage 3 and FSDP divide the reference too",
            when=lambda run, _: "the reference is divided over the ranks" if sharded(run) and (run.job.parallel.shard or 1) > 1 else None,
        ),
        *share_marks("reference-copy", "reference", "reward", "critic", some=0.15, most=0.25, weights=(1.0, 1.0), noun="frozen copies"),
    ),
    fault=_fault,
    form=_form,
    remedies=("precompute-reference", "adapter-reference", "offload-reference", "zero-3"),
    fires=(
        Example(
            "DPO of a 7B under ZeRO-2",
            job=job(
                "meta-llama/Llama-2-7b-hf",
                objective="dpo",
                method="{kind: full}",
                precision="{weights: bf16}",
                reference="copy",
                parallel="{strategy: zero2, shard: 8}",
                batch="{micro_batch: 1, seq_len: 1024}",
                hardware="{gpu: a100-40gb}",
                activations="{checkpointing: full}",
            ),
            text=trace("deepspeed/runtime/zero/stage_1_and_2.py|backward") + oom("1.57 GiB", allocated=37.5, capacity=39.39),
        ),
        Example(
            "LoRA with a reference model that is passed all the same",
            job=job(
                objective="dpo",
                method="{kind: lora, rank: 16}",
                precision="{weights: bf16}",
                reference="copy",
                batch="{micro_batch: 2, seq_len: 2048}",
                hardware="{gpu: a100-40gb}",
                activations="{checkpointing: full}",
            ),
            text=trace("trl/trainer/dpo_trainer.py|compute_loss") + oom("1002.00 MiB", allocated=37.5, capacity=39.39),
        ),
    ),
    quiet=(Example("supervised training", job=job(objective="sft", batch="{micro_batch: 8, seq_len: 4096}"), text=oom("512.00 MiB", allocated=76.5)),),
)
