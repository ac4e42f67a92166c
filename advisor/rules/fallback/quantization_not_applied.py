"""The weights asked for in 4 or 8 bit are resident in 16 (fused experts, missing kernel, unsupported card)."""

from __future__ import annotations

import re

from advisor.deviation import ineffective
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import console, counters, fingerprint
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import QUANTISED, in_phase, near, weight_bytes
from advisor.run import Run
from advisor.units import show

QUANTISED_NOTHING = r"\bno (?:weights?|modules?|layers?|parameters?) (?:of \S{1,120} )?(?:was|were) quanti[sz]ed\b"
FOUR_BIT = ("nf4", "fp4", "gptq-int4", "awq-int4", "mxfp4")


def _applies(run: Run, _evidence: Evidence) -> str | None:
    return (
        "the base is not to be quantised"
        if run.job.method.base == "none" and run.facts.get("method.base") and run.facts["method.base"].kind in ("stated", "read")
        else None
    )


def _experts(run: Run, _evidence: Evidence) -> str | None:
    shape = run.architecture
    if shape is None or run.job.method.base not in QUANTISED:
        return None
    fused = any(t.role == "expert" and not t.linear for b in shape.blocks for t in b.tensors)
    share = shape.expert_parameters / shape.parameters
    if share < 0.4:
        return None
    held = "one fused tensor a layer, which is no nn.Linear" if fused else "experts, in some versions held as one tensor a layer that is no nn.Linear"
    return f"{share:.0%} of the weights are {held}: what looks for nn.Linear leaves them in 16 bit"


def _larger(run: Run, evidence: Evidence) -> str | None:
    """While loading, more is allocated than all weights would take quantised."""
    whole, held = weight_bytes(run, 1.1 if run.job.method.base == "int8" else 0.6, evidence), counters.of(evidence).allocated
    if whole is None or held is None or run.job.method.base not in QUANTISED or not in_phase(evidence, "load"):
        return None
    return f"{show(held)} allocated while loading, where all weights quantised are about {show(whole)}" if held > 1.5 * whole else None


_HELD = pattern(r"(?<![\w.])(\d{1,3}(?:\.\d{1,2})?) ?(GiB|GB|G)\b(?! (?:card|gpu|vram card))", re.IGNORECASE)
_MODEL = pattern(r"\bmodel\b|\bweights\b|模型|权重", re.IGNORECASE)


def _told(run: Run, evidence: Evidence) -> str | None:
    """A sentence gives the model the size that its weights have in 16 bit, where a quantised base was asked for."""
    whole = weight_bytes(run, 2.0, evidence)
    if whole is None or run.job.method.base not in QUANTISED:
        return None
    for line in evidence.lines:
        if len(line.text) > 400 or not _MODEL.search(line.text):
            continue
        for number, unit in _HELD.findall(line.text):
            if near(float(number) * (2**30 if unit.lower() == "gib" else 1e9), whole, 0.1) or near(float(number) * 2**30, whole, 0.06):
                return f"{line.where}: {number} {unit} is what the weights take in 16 bit ({show(whole)}), not what they take quantised"
    return None


def _request(run: Run, evidence: Evidence) -> str | None:
    return fingerprint.match(run, evidence, "expert-stack") if run.job.method.base in QUANTISED else None


_FOUR = r"(?:(?:4|8)[- ]?bit|int8|int4|nf4|qlora|quanti[sz]\w+|load_in_[48]bit)"
# "QLoRA with the same batch as before", "4-bit on the same data without it": what else was kept
_NOT_OF_MEMORY = (
    r"(?! (?:\w+ ){0,2}(?:batch\w*|data\w*|script|code|config\w*|setup|settings?|seed|GPUs?|cards?|machine|error|issue|results?|loss|prompts?|way|time)\b)"
)
_SAME = pattern(
    rf"\b{_FOUR}\b[^.?!]{{0,60}}\b(?:(?:same|identical|similar)\b{_NOT_OF_MEMORY}|"
    r"as much|no less|unchanged|not (?:\w+ )?(?:reduced?|lower|less|smaller))\b[^.?!]{0,40}"
    r"\b(?:bf16|fp16|16[- ]?bit|half precision|full precision|without|memory|VRAM|before)\b|"
    rf"\b(?:memory|VRAM|usage|footprint)\b[^.?!]{{0,40}}\b(?:same|identical|unchanged|not (?:\w+ )?(?:reduced?|lower))\b[^.?!]{{0,40}}\b{_FOUR}\b",
    re.IGNORECASE,
)


def _same(_run: Run, evidence: Evidence) -> str | None:
    """A sentence says that the model takes as much with quantisation as without it."""
    for line in evidence.lines:
        if 20 <= len(line.text) <= 600 and _SAME.search(line.text) and not line.text.rstrip().endswith("?"):
            return f"{line.where}: with quantisation it takes as much as without"
    return None


_MODULES = pattern(r"Linear4bit|Linear8bitLt|Params4bit|Int8Params|QuantLinear|WQLinear|HQQLinear|is_loaded_in_[48]bit|is_quantized")


def _none_replaced(_run: Run, evidence: Evidence) -> str | None:
    """Quantised modules were counted, and there is none."""
    for expression, number, where in console.answers(evidence):
        if number == 0 and _MODULES.search(expression):
            return f"{where}: no module of the model is a quantised one"
    return None


_WEIGHT = pattern(
    r"\b(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|qkv_proj|query_key_value|fc[12]|dense\w*)\b[\w.]*\.weight\b.{0,40}\b(bfloat16|float16|float32)\b"
)


def _printed(run: Run, evidence: Evidence) -> str | None:
    """A matrix of a block is shown in 16 or 32 bit; a quantised one is uint8 or int8 (bitsandbytes Params4bit, Int8Params)."""
    if run.job.method.base not in QUANTISED:
        return None
    hit = next((line for line in evidence.lines if _WEIGHT.search(line.text) and "requires_grad=True" not in line.text and "lora" not in line.text), None)
    return f"{hit.where} shows a matrix of a block in 16 bit or more" if hit is not None else None


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    return run.deviating(ineffective("method.base", cause="quantization-not-applied")) if run.job.method.base in QUANTISED else None


RULE = Rule(
    id="quantization-not-applied",
    tier="fallback",
    title="Weights that should be in 4 or 8 bit are in 16 bit",
    cleared="The weights are in the layout that was asked for.",
    prior=-1.0,
    applies=_applies,
    marks=(
        Mark("quantization-not-applied-told", 2.8, "as large as in 16 bit", "2 bytes a parameter; bitsandbytes holds half a byte or one", when=_told),
        Mark("quantization-not-applied-same", 3.0, "as much as without", "half a byte or one a parameter, where 16 bit takes two", when=_same),
        Mark(
            "quantization-not-applied-mxfp4",
            4.5,
            "the loader says that it falls back to 16 bit",
            "transformers quantizer_mxfp4.py: 'MXFP4 quantization requires ... we will default to dequantizing the model to bf16', integrations/gguf/utils.py: "
            "'Every quantized tensor will be dequantized at load time'; unsloth: 'this FP8 checkpoint is dequantized to 16-bit on load'",
            pattern=(
                r"default to dequantizing the model|dequantiz(e|ing) the model to bf16|will be (loaded|kept) in (bf16|float16|16[- ]bit)|"
                r"\b(?:is|are|will be) dequantized (?:to \S{1,16} )?(?:on|at|while|during) load|"
                r"\bDequantized \d+ (?:[\w-]+ ){0,3}(?:modules|weights|layers) to (?:bf16|fp16|16)"
            ),
        ),
        Mark(
            "quantization-not-applied-dequantizes",
            3.5,
            "quantised weights are being written again in 16 bit",
            "transformers PreTrainedModel.dequantize, HfQuantizer._dequantize, integrations/bitsandbytes.py dequantize_and_replace: each layer as a plain one",
            pattern=r"dequantize_and_replace|modeling_utils\.py:dequantize\b|quantizers/\w+\.py:_?dequantize\b|(?<![\w.])(?:model|base)\.dequantize\(",
            on="frame",
        ),
        Mark(
            "quantization-not-applied-nothing",
            4.5,
            "the loader says that it quantised nothing",
            "transformers integrations/bitsandbytes.py replace_with_bnb_linear: 'no linear modules were found in your model'; "
            "unsloth models/loader_utils.py: '4bit loading was on, but no weight of ... was quantized'",
            pattern=r"\bno linear modules were found in your model\b|" + QUANTISED_NOTHING,
            on="line",
        ),
        Mark(
            "quantization-not-applied-experts",
            2.0,
            "fused experts",
            "bitsandbytes replaces nn.Linear only (transformers integrations/bitsandbytes.py)",
            when=_experts,
        ),
        Mark("quantization-not-applied-larger", 3.0, "too much for quantised weights", "bits a weight of the layout, scales included", when=_larger),
        Mark("quantization-not-applied-none", 5.0, "no quantised module", "bitsandbytes replaces nn.Linear by Linear4bit or Linear8bitLt", when=_none_replaced),
        Mark("quantization-not-applied-printed", 3.0, "a 16-bit matrix", "torch.Tensor.dtype of a block's weight", when=_printed),
        Mark("quantization-not-applied-request", 3.0, "a 16-bit stack of experts", "a fused expert tensor has experts x out x in elements", when=_request),
        Mark(
            "quantization-not-applied-convert",
            1.0,
            "the loader materialises weights in their own dtype",
            "transformers core_model_loading._materialize_copy: tensor.to(device, dtype)",
            pattern=r"core_model_loading\.py:_materialize_copy|convert_moe_packed_tensors",
            on="frame",
            when=lambda run, _: "" if run.job.method.base in QUANTISED else None,
        ),
    ),
    fault=_fault,
    remedies=("apply-quantization", "offload-parameters", "larger-gpu"),
    fires=(
        Example(
            "experts are no linear layers",
            job=job("allenai/OLMoE-1B-7B-0924", method="{kind: lora, base: nf4}", hardware="{gpu: rtx-3060}"),
            text=trace(
                "transformers/modeling_utils.py|from_pretrained",
                "transformers/core_model_loading.py|_materialize_copy|tensor = tensor.to(device=device, dtype=dtype)",
            )
            + oom("256.00 MiB", allocated=11.3, capacity=11.76, free=0.07),
        ),
    ),
    quiet=(Example("16 bit is meant", job=job(method="{kind: full, base: none}"), text=oom("512.00 MiB", allocated=76.5)),),
)
