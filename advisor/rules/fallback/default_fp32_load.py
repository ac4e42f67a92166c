"""Weights were loaded in fp32 because no dtype was given."""

from __future__ import annotations

import re

from advisor.deviation import widened
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters, fingerprint
from advisor.rules.estimating import ledger_of
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import guessed, share
from advisor.rules.situation import QUANTISED, in_phase, weight_bytes
from advisor.run import Run
from advisor.techniques.conditions import is_skyrl
from advisor.units import show

# parameters are the fp32 masters, the compute copy is 16 bit; NeMo-RL's policy workers load fp32 whatever policy.precision is
FP32_BY_DESIGN = frozenset({"torchtitan", "megatron-lm", "megatron-bridge", "nemo"})
LITTLE = 0.1  # of the card; a judgement: less than the estimate's own error at its ninth decile


def _dtype_given(evidence: Evidence) -> bool:
    """Whether a 16-bit dtype is given where weights are loaded, whatever a strategy makes of it later."""
    return any(
        key.rpartition(".")[2] in ("torch_dtype", "dtype") and any(d in str(value) for d in ("bfloat16", "float16", "half", "auto"))
        for _, key, value in evidence.seen_keys
    )


_LOADS = pattern(r"from_pretrained|AutoModel|model_name|model_path|pretrained|base_model")


def _loads(evidence: Evidence) -> bool:
    """Whether a text shows a model being loaded by its name."""
    return (
        any(_LOADS.search(line.text) for line in evidence.lines)
        or any(_LOADS.search(f"{f.function}: {f.code}") for f in evidence.frames)
        or any(_LOADS.search(key) for _, key, _ in evidence.seen_keys)
    )


_SKYRL = pattern(r"\bskyrl(?:_train)?\b", re.IGNORECASE)


def _by_design(run: Run, evidence: Evidence) -> bool:
    """Whether the framework keeps fp32 weights on purpose, as the masters that its optimizer steps.

    verl's FSDP engine does where all weights are trained, and SkyRL's does (workers/fsdp/fsdp_worker.py: ``bf16=False``, "should always be in fp32").
    """
    name = run.job.framework.name
    if name in FP32_BY_DESIGN or (name == "verl" and run.job.method.kind == "full"):
        return True
    return is_skyrl(run) or any(_SKYRL.search(frame.file) for frame in evidence.frames)


def _less_held(run: Run, evidence: Evidence) -> str | None:
    """In a step less is allocated than the weights alone would take in fp32."""
    whole = weight_bytes(run, 4, evidence)
    held = min((s.allocated_bytes for s in evidence.samples if s.allocated_bytes and s.step is not None), default=None)
    if whole is None or held is None or run.job.method.base in QUANTISED or run.job.offload.parameters not in (None, "none"):
        return None
    share = whole // max(1, (run.job.parallel.shard or 1) * (run.job.parallel.tensor or 1) * (run.job.parallel.pipeline or 1))
    return f"{show(held)} are allocated in a step, where the weights alone would take {show(share)} in fp32" if held < 0.8 * share else None


_ENGINE_MOVES = pattern(r":_configure_distributed_model: .*module\.to\(")


def _cast_before(run: Run, evidence: Evidence) -> bool:
    """DeepSpeed's engine moves the module only after half() or bfloat16() (runtime/engine.py _configure_distributed_model)."""
    return run.job.precision.compute in ("bf16", "fp16") and any(_ENGINE_MOVES.search(f"{f.file}:{f.function}: {f.code}") for f in evidence.frames)


def _default(run: Run, evidence: Evidence) -> str | None:
    fact = run.facts.get("precision.weights")
    if run.job.precision.weights != "fp32" or run.job.method.base in QUANTISED or fact is None or fact.kind in ("stated", "read"):
        return None
    if _by_design(run, evidence) or _dtype_given(evidence) or (fact.kind == "assumed" and run.job.model.name is None):
        return None
    if evidence.failure is None and run.missing:
        return None  # nothing failed, and what a run of unknown size would take is unknown: no more than that a line is not there
    given = run.facts.get("load.dtype")
    if given is not None and given.kind in ("stated", "read") and given.value is not None:
        return None  # fp32 was asked for
    whole = weight_bytes(run, None, evidence)
    if whole is None and not _loads(evidence):
        return None  # nothing is known of a model, nor of how it is loaded
    if whole is not None and _is_little(run, evidence, whole):
        return None
    size = f", {show(whole)} where 16 bit is half" if whole else ""
    return f"no dtype is given, so the weights are fp32{size} ({fact.where or fact.why or fact.kind})"


def _is_little(run: Run, evidence: Evidence, whole: int) -> bool:
    """Whether 16 bits would free too little of the card to be why it is full: half the weights, and of what is trained half the gradients and states."""
    capacity = counters.of(evidence).capacity or (run.usable[0] if run.usable else None)
    copies = 4 if run.job.method.kind == "full" else 1  # Adam's two moments have the trained parameter's dtype (torch/optim/adam.py zeros_like)
    return capacity is not None and copies * whole // 2 < LITTLE * capacity


def _decides(run: Run, evidence: Evidence) -> str | None:
    """Loaded in 16 bits the same run would fit, and as it is it does not: the width that nobody asked for is the difference."""
    if _default(run, evidence) is None or not in_phase(evidence, "step", "forward", "loss", "backward", None):
        return None
    capacity = counters.of(evidence).capacity or (run.usable[0] if run.usable else None)
    now, then = ledger_of(run), ledger_of(run.but(precision={"weights": "bf16"}))
    if capacity is None or now is None or then is None:
        return None
    before, after = now.peak().bytes, then.peak().bytes
    return (
        f"loaded in 16 bits the same run needs {show(after)} of {show(capacity)}, as it is {show(before)}"
        if after < 0.95 * capacity and before > capacity
        else None
    )


def _weighty(run: Run, evidence: Evidence) -> str | None:
    part = share(run, evidence, "weights")
    return f"fp32 weights are {part:.0%} of the failing moment" if run.job.precision.weights == "fp32" and part >= 0.3 else None


def _asked_for(run: Run, _evidence: Evidence) -> str | None:
    """fp32 is what was asked for where the weights are loaded."""
    given = run.facts.get("load.dtype")
    wide = given is not None and given.kind in ("stated", "read") and given.value == "fp32"
    return f"fp32 is asked for ({given.where or 'stated'})" if wide and given is not None else None


def _sixteen(run: Run, evidence: Evidence) -> str | None:
    fact = run.facts.get("precision.weights")
    given = fact is not None and fact.kind in ("stated", "read") and run.job.precision.weights in ("bf16", "fp16")
    if not given and _dtype_given(evidence):
        return "a 16-bit dtype is given where the weights are loaded"
    return f"a 16-bit dtype is given ({fact.where or 'stated'})" if given and fact is not None else None


def _beyond_sixteen(run: Run, evidence: Evidence) -> str | None:
    """While loading alone, more than the 16-bit weights is allocated, and no more than the fp32 ones."""
    half, held = weight_bytes(run, 2, evidence), counters.of(evidence).wanted
    if (
        half is None
        or held is None
        or not in_phase(evidence, "load")
        or _dtype_given(evidence)
        or run.job.method.base in QUANTISED
        or (run.job.parallel.device_map or ())
    ):
        return None
    if 1.15 * half < held <= 2.1 * half:
        return f"{show(held)} wanted while loading; the weights are {show(half)} in 16 bit and {show(2 * half)} in fp32"
    return None


_LAYER = pattern(r"modeling_\w+\.py:forward: .*self\.(?:\w*proj|act_fn|mlp|fc\d|dense\w*|self_attn)\(")


def _in_layer(evidence: Evidence) -> bool:
    """What a layer's own line asks for is its output, of a size that an unknown batch leaves open: weights are gathered in FSDP's frames."""
    failure = evidence.failure
    inner = failure.frames[-1] if failure is not None and failure.frames else None
    return inner is not None and in_phase(evidence, "forward") and _LAYER.search(f"{inner.file}:{inner.function}: {inner.code}") is not None


def _wide_request(run: Run, evidence: Evidence) -> str | None:
    """A whole weight or unit is asked for in fp32, and no 16-bit tensor has that size."""
    if run.job.method.base in QUANTISED or not in_phase(evidence, "load", "forward", "backward", "eval", None):
        return None
    if (guessed(run, "batch.micro_batch") or guessed(run, "batch.seq_len")) and _in_layer(evidence):
        return None
    return fingerprint.match(run, evidence, "unit", "weight", "vocabulary-weight", alone=True, dtype="fp32")


_FP32 = pattern(r"^\s*(?:>>> |Out ?\[\d+\]: )?torch\.float32(?:[\s,]+[\d_,]{7,18})?\s*$")
_MATRIX = pattern(
    r"\b(?:layers|h|blocks?|layer)\.\d+\.(?!.*(?:norm|ln_|lora|exp_avg|momentum|grad))[\w.]+\.weight\b.{0,40}\b(?:torch\.)?float32\b"
)  # named_parameters, printed
_ASKED = pattern(r"parameters\(\)\)?\S*\.dtype|\.weight\.dtype|\bp(?:aram)?\.dtype|model\.dtype")


def _shown(run: Run, evidence: Evidence) -> str | None:
    """``torch.float32`` stands alone on a line, beside a parameter count or under code that prints a parameter's dtype."""
    if run.job.method.base in QUANTISED:
        return None
    matrix = next((line for line in evidence.lines if _MATRIX.search(line.text)), None)
    if matrix is not None:
        return f"{matrix.where}: a matrix of a block is shown in fp32"
    asked = any(_ASKED.search(line.text) for line in evidence.lines)
    for line in evidence.lines:
        if _FP32.match(line.text) and (asked or re.search(r"\d{7,}", line.text)):
            return f"{line.where}: a parameter's dtype is shown as torch.float32"
    return None


def _fault(run: Run, evidence: Evidence) -> Run | None:
    if run.job.precision.weights == "fp32" or run.job.method.base in QUANTISED or _sixteen(run, evidence) or _dtype_given(evidence):
        return None
    return run.deviating(widened("precision.weights", "fp32", cause="default-fp32-load"))


RULE = Rule(
    id="default-fp32-load",
    tier="fallback",
    title="The weights are in fp32 because no dtype was given when they were loaded",
    cleared="The weights are in a 16-bit dtype, or quantised.",
    prior=-1.0,
    marks=(
        Mark(
            "default-fp32-default",
            1.5,
            "by default",
            "transformers before 5: from_pretrained without torch_dtype builds fp32; TRL: dtype float32 for a model given by name",
            when=_default,
        ),
        Mark("default-fp32-weighty", 1.0, "much of the card", "the estimate's ledger", when=_weighty),
        Mark("default-fp32-decides", 4.0, "the width decides", "the estimate's ledger, with the weights in 16 bits", when=_decides),
        Mark(
            "default-fp32-warned",
            4.0,
            "the library says that the weights are in fp32, or that no dtype was given",
            "transformers modeling_utils.py: 'You are attempting to use Flash Attention 2.0 without specifying a torch dtype', "
            "'only supports torch.float16 and torch.bfloat16 dtypes, but the current dype in X is torch.float32'",
            pattern=r"Flash ?Attention[^\n]{0,40}without specifying a torch dtype|but the current dy?t?ype in \w+ is torch\.float32",
        ),
        Mark("default-fp32-less-held", -4.0, "less than fp32 weights", "4 bytes a parameter, against what is printed as allocated", when=_less_held),
        Mark("default-fp32-asked", -2.5, "fp32 was asked for", "from_pretrained(torch_dtype=torch.float32)", when=_asked_for),
        Mark("default-fp32-sixteen", -1.5, "dtype given", "from_pretrained(torch_dtype=...)", when=_sixteen),
        Mark("default-fp32-beyond", 2.0, "more than 16-bit weights", "4 bytes a parameter", when=_beyond_sixteen),
        Mark(
            "default-fp32-request",
            2.0,
            "an fp32 weight",
            "FSDP gathers a unit in the dtype of its flat parameter; from_pretrained copies tensor by tensor",
            when=_wide_request,
        ),
        Mark(
            "default-fp32-cast-late",
            3.5,
            "the model is cast only after it was placed on the device",
            "torch.nn.Module.to: a module built in the default dtype is moved first; the cast that follows is too late for the peak",
            pattern=r"(from_pretrained|load_model|build_model|create_model)\([^\n]*\bdevice(_map)?\s*=[^\n]*\)\s*\.\s*(to\([^)]*(bfloat16|float16|half)|half\(|bfloat16\()|"
            r"\.(cuda|to)\(\s*(['\"]?cuda[^)]*|device|rank|local_rank|args\.device)?\)\s*\.\s*(half\(|bfloat16\(|to\([^)]*(bfloat16|float16))",
        ),
        Mark(
            "default-fp32-printed",
            3.5,
            "a weight's dtype is printed as fp32",
            "torch.Tensor.dtype of a parameter after loading",
            pattern=r"\bweight\.dtype\W{1,4}torch\.float32|\b(?:unet|transformer|pipe(?:line)?|model|weights|params?)[._ ]{1,2}dtype\W{1,4}(?:is |was )?"
            r"(?:torch\.)?float32\b|\bdtype of (the )?(model|weights|parameters)\W{1,4}torch\.float32",
        ),
        Mark("default-fp32-shown", 3.5, "the parameters are shown in fp32", "torch.dtype as print shows it, of a parameter after loading", when=_shown),
        Mark(
            "default-fp32-upcast",
            -4.0,
            "the wrapper says that it widens what was loaded narrower",
            "accelerate accelerator.py, LLaMA-Factory adapter.py, axolotl: what they print as they cast",
            pattern=r"[Uu]pcast(ed|ing) (of )?(low precision|trainable|all)|Casting trainable parameters? to float32",
        ),
        Mark(
            "default-fp32-widened-later",
            -3.0,
            "the model is widened after it was loaded: it was narrower before",
            "torch.nn.Module.float casts what is there",
            pattern=r"(nn/modules/module|modeling_utils)\.py:float\b",
            on="frame",
        ),
        Mark(
            "default-fp32-move",
            1.0,
            "the failure comes while whole modules are moved to the device",
            "torch/nn/modules/module.py _apply -> convert -> t.to",
            pattern=r"nn/modules/module\.py:(convert|_apply)\b",
            on="frame",
            when=lambda run, e: (
                None if _by_design(run, e) or _cast_before(run, e) or (run.job.precision.weights in ("bf16", "fp16") and _sixteen(run, e)) else ""
            ),
        ),
    ),
    fault=_fault,
    remedies=("load-in-16-bit", "qlora"),
    fires=(
        Example(
            "no dtype, transformers 4",
            job=job(
                "meta-llama/Llama-2-7b-hf", framework="{name: hf-trainer, versions: {transformers: 4.44.0}}", method="{kind: full}", hardware="{gpu: rtx-3090}"
            ),
            text="model = build_model(device='cuda').to(torch.bfloat16)\n"
            + trace("torch/nn/modules/module.py|to|return self._apply(convert)", "torch/nn/modules/module.py|convert|return t.to(")
            + oom("172.00 MiB", allocated=23.0, capacity=23.69),
        ),
    ),
    quiet=(
        Example(
            "bf16 given",
            job=job("Qwen/Qwen2.5-0.5B", precision="{weights: bf16}", batch="{micro_batch: 16, seq_len: 4096}", hardware="{gpu: a100-80gb}"),
            text=trace("torch/nn/functional.py|cross_entropy") + oom("37.10 GiB", allocated=60.0, free=18.0),
        ),
    ),
)
