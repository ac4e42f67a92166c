"""Merging adapters widens the whole quantised base."""

from __future__ import annotations

from advisor.deviation import ineffective
from advisor.evidence import Evidence
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import QUANTISED, in_phase
from advisor.run import Run


def _fault(run: Run, evidence: Evidence) -> Run | None:
    if run.job.method.base not in QUANTISED or not in_phase(evidence, "merge"):
        return None
    return run.deviating(ineffective("method.base", phases=("merge",), cause="merge-dequantizes"))


RULE = Rule(
    id="merge-dequantizes",
    tier="copies",
    title="Merging the adapters widens the whole quantised base on the card",
    cleared="No adapters are merged on the card.",
    prior=-1.5,
    explains=("merge",),
    marks=(
        Mark(
            "merge-dequantizes-frame",
            4.0,
            "adapters are merged into the base",
            "peft tuners: merge_and_unload, Linear4bit.merge dequantises to the compute dtype; unsloth save_pretrained_merged",
            pattern=r"merge_and_unload|_unload_and_optionally_merge|merge_adapter|save_pretrained_merged|unsloth_save_model|merge_lora|:merge\b",
            on="frame",
        ),
        Mark(
            "merge-dequantizes-phase",
            2.5,
            "while merging",
            "peft tuners: merging replaces each quantised layer by one in the compute dtype",
            when=lambda _, e: "the failure comes while adapters are merged" if in_phase(e, "merge") else None,
        ),
        Mark(
            "merge-dequantizes-program",
            3.5,
            "the program that runs merges adapters into their base",
            "LLaMA-Factory export_model.py and `llamafactory-cli export`, axolotl merge-lora, ms-swift export --merge_lora: the base is loaded whole in 16 bit",
            pattern=(
                r"\bexport_model\.py\b|\bllamafactory-cli export\b|\baxolotl (?:cli\.)?merge[-_]lora\b|\bmerge_lora\.py\b|"
                r"\bswift export\b.*merge_lora|\bmerge_peft_adapters?\.py\b"
            ),
            on="line",
            when=lambda _, e: "" if in_phase(e, "merge", "load", "save", None) else None,
        ),
        Mark(
            "merge-dequantizes-weight",
            1.5,
            "quantised weights are widened",
            "bitsandbytes functional.dequantize_4bit, peft dequantize_bnb_weight",
            pattern=r"mx\.dequantize\(|dequantize_4bit|dequantize_bnb_weight|dequantize_module_weight|fast_dequantize",
            on="frame",
            when=lambda _, e: "" if in_phase(e, "merge", "save") else None,
        ),
    ),
    fault=_fault,
    remedies=("merge-on-host",),
    fires=(
        Example("told in words", text="QLoRA training of the 34B model went well on my 24 GB card, but it runs out of memory when merging the adapters.\n"),
        Example("told in Chinese", text="训练没有问题，合并lora权重的时候爆显存了，用的是 4bit 量化。\n"),
        Example(
            "merge after QLoRA",
            job=job("meta-llama/Llama-2-70b-hf", method="{kind: lora, base: nf4, rank: 16}"),
            text=trace(
                "peft/tuners/lora/model.py|merge_and_unload|return self._unload_and_optionally_merge(progressbar=progressbar)",
                "peft/tuners/lora/bnb.py|merge|output = dequantize_bnb_weight(weight, state=weight.quant_state)",
            )
            + oom("448.00 MiB", allocated=78.0),
        ),
    ),
    quiet=(Example("in the step", text=trace("torch/optim/adamw.py|_multi_tensor_adamw") + oom("512.00 MiB", allocated=76.5)),),
)
