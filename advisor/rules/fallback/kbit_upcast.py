"""Preparation for k-bit training widens what is not quantised."""

from __future__ import annotations

from advisor.deviation import widened
from advisor.evidence import Evidence
from advisor.rules import compared, rises, tried
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share
from advisor.rules.situation import QUANTISED
from advisor.run import Run
from advisor.units import GIB, show

PREPARES = "prepare_model_for_(?:kbit|int8)_training"


def _applies(run: Run, evidence: Evidence) -> str | None:
    fact = run.facts.get("method.kind")
    if run.job.method.kind != "full" or (fact is not None and fact.kind == "assumed" and _compared(run, evidence)):
        return None
    return "all weights are trained, so nothing is prepared for k-bit training"


def _not_quantised(run: Run, _evidence: Evidence) -> str | None:
    method = run.job.method
    if method.kbit_preparation is not True or method.base in QUANTISED:
        return None
    fact = run.facts.get("method.kbit_preparation")
    return (
        "the preparation for k-bit training runs on a base that is not quantised: every weight becomes fp32"
        if fact is not None and fact.kind in ("stated", "read")
        else None
    )


def _wide_tables(run: Run, evidence: Evidence) -> str | None:
    shape, method = run.architecture, run.job.method
    if shape is None or method.base not in QUANTISED or method.kbit_preparation is not True:
        return None
    tables = (shape.embedding_parameters + shape.head_parameters) * 4
    part = share(run, evidence, "weights")
    return f"embedding and head are fp32 after the preparation ({tables / 2**30:.1f} GiB)" if part >= 0.3 and tables > 3 * 2**30 else None


def _rise(run: Run, evidence: Evidence) -> str | None:
    """Between two printed figures exactly that was added which widening the tables from 16 bit to fp32 adds."""
    shape, method = run.architecture, run.job.method
    if shape is None or method.base not in QUANTISED or method.kbit_preparation is False or method.modules_to_save:
        return None
    return rises.matching(evidence, 2 * (shape.embedding_parameters + shape.head_parameters), "embedding and head in fp32 instead of 16 bit")


def _compared(_run: Run, evidence: Evidence) -> str | None:
    """Both were tried: with the preparation much more is held than without it."""
    stage = tried.before_after(evidence, PREPARES)
    if stage is not None and stage[1].memory is not None and stage[0].memory is not None and stage[1].memory - stage[0].memory >= GIB // 2:
        return f"{stage[0].says} before the preparation ({stage[0].where}), {stage[1].says} after it ({stage[1].where})"
    both = compared.with_and_without(evidence, PREPARES)
    if both is None or both[0].unit != "bytes" or both[0].value - both[1].value < GIB // 2:
        return None
    added = round(both[0].value - both[1].value)
    return f"with the preparation {both[0].says} ({both[0].where}), without it {both[1].says} ({both[1].where}): it adds {show(added)}"


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    method = run.job.method
    if method.kbit_preparation is not True or method.base in QUANTISED or run.job.precision.weights == "fp32":
        return None
    return run.deviating(widened("precision.weights", "fp32", cause="kbit-upcast"))


RULE = Rule(
    id="kbit-upcast",
    tier="fallback",
    title="The preparation for k-bit training widens weights to fp32",
    cleared="Nothing widens weights for k-bit training.",
    prior=-1.0,
    applies=_applies,
    marks=(
        Mark(
            "kbit-upcast-frame",
            4.5,
            "a 16-bit parameter is being widened",
            "peft/utils/other.py prepare_model_for_kbit_training: param.data = param.data.to(torch.float32)",
            pattern=r"prepare_model_for_(kbit|int8)_training.*float32|utils/other\.py:prepare_model_for_(kbit|int8)_training|_prepare_model_for_kbit_training",
            on="frame",
        ),
        Mark(
            "kbit-upcast-tables-cast",
            4.5,
            "embedding and output layer of a quantised model are being cast",
            "axolotl loaders/model.py _convert_embedding_modules_dtype: fp32 for a quantised base unless embeddings_skip_upcast is set",
            pattern=r":_?convert_embedding\w*_dtypes?\b",
            on="frame",
            when=lambda run, _: "" if run.job.method.base in QUANTISED else None,
        ),
        Mark(
            "kbit-upcast-silently",
            1.2,
            "what comes to the attention of a quantised model is fp32",
            "transformers modeling_flash_attention_utils.py: 'The input hidden states seems to be silently casted in float32, this might be related to the "
            "fact you have upcasted embedding or layer norm layers in float32'",
            pattern=r"seems to be silently casted in float32",
            on="line",
            when=lambda run, _: "" if run.job.method.base in QUANTISED else None,
        ),
        Mark("kbit-upcast-unquantised", 3.0, "nothing is quantised", "it casts every fp16 and bf16 parameter that is not Params4bit", when=_not_quantised),
        Mark(
            "kbit-upcast-compared",
            4.0,
            "more with the preparation than without",
            "peft/utils/other.py prepare_model_for_kbit_training: norms, tables and head become fp32, and what they compute is fp32 after them",
            when=_compared,
        ),
        Mark("kbit-upcast-tables", 1.0, "wide tables", "the same loop casts embeddings and head", when=_wide_tables),
        Mark("kbit-upcast-rise", 4.0, "the tables' widening between two figures", "the same loop: 2 bytes more for each of their elements", when=_rise),
    ),
    fault=_fault,
    remedies=("keep-kbit-narrow", "apply-quantization", "qlora"),
    fires=(
        Example(
            "the tables' widening in two figures",
            job=job("mistralai/Mistral-7B-v0.3", method="{kind: lora, base: nf4, kbit_preparation: true}", precision="{weights: bf16}"),
            text="loaded: memory allocated 3838 MiB\nprepared: memory allocated 4351 MiB\n"
            + oom("512.00 MiB", allocated=4.25, unallocated=0.3, free=0.06, capacity=7.44),
        ),
        Example(
            "both were tried",
            job=job("mistralai/Mistral-7B-v0.3", method="{kind: lora, base: nf4, kbit_preparation: true}", precision="{weights: bf16}"),
            text="peak of 50 steps, prepare_model_for_kbit_training: 21.7 GB\npeak of 50 steps, no prepare_model_for_kbit_training: 15.1 GB\n",
        ),
        Example(
            "preparation of a 16-bit base",
            job=job(
                "meta-llama/Llama-2-7b-hf", method="{kind: lora, base: none, kbit_preparation: true}", precision="{weights: fp16}", hardware="{gpu: rtx-3090}"
            ),
            text=trace("peft/utils/other.py|prepare_model_for_kbit_training|param.data = param.data.to(torch.float32)")
            + oom("172.00 MiB", allocated=23.1, capacity=23.69),
        ),
    ),
    quiet=(
        Example(
            "less with the preparation",
            job=job("mistralai/Mistral-7B-v0.3", method="{kind: lora, base: nf4, kbit_preparation: true}", precision="{weights: bf16}"),
            text="no prepare_model_for_kbit_training 21.7 GB\nprepare_model_for_kbit_training 15.1 GB\n",
        ),
        Example(
            "another rise",
            job=job("mistralai/Mistral-7B-v0.3", method="{kind: lora, base: nf4, kbit_preparation: true}", precision="{weights: bf16}"),
            text="loaded: memory allocated 3838 MiB\nwith adapters: memory allocated 4018 MiB\n" + oom("512.00 MiB", allocated=20.1, capacity=23.69),
        ),
        Example("full training", job=job(method="{kind: full}"), text=oom("512.00 MiB", allocated=76.5)),
    ),
)
