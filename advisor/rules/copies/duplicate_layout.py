"""The same weights or buffers are resident in two layouts or precisions, or once per layer."""

from __future__ import annotations

import re

from advisor.deviation import extra
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import console, counters, fingerprint, optimizer_frames, remainder, snapshots
from advisor.rules.estimating import ledger_of
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import ONLINE, PREFERENCE, colocated, in_phase, near, weight_bytes
from advisor.run import Run
from advisor.units import GIB, show

LEAST = GIB // 2
_MASKS = pattern(r"mask|bias|alibi|rel_pos|position", re.IGNORECASE)
LARGE_BUFFER = GIB // 4  # no table of positions, scales or statistics of a usual model is as large


def _of_loading(label: str) -> bool:
    """Whether a figure is of a built model alone: an optimizer that is set up has states of its own."""
    label = label.replace("from_pretrained", "load")
    return any(w in label for w in ("init", "load", "model")) and not any(w in label for w in ("optim", "zero", "step", "train"))


def _loaded(evidence: Evidence) -> int | None:
    """Allocated bytes after the model was built, as a log prints them."""
    figures = [s.peak_allocated_bytes or s.allocated_bytes for s in evidence.samples if _of_loading(s.label.lower())]
    known = [f for f in figures if f]
    asked = [size for expression, size, _ in console.sizes(evidence) if "memory_allocated" in expression]
    return known[0] if known else max(asked, default=None)


_OPTIMIZER_SETUP = pattern(
    r"_configure_zero_optimizer|_configure_optimizer|initialize_optimizer_states|_setup_for_real_optimizer|_create_fp32_partitions|get_megatron_optimizer|"
    r"bf16_optimizer\.py|fused_optimizer\.py|distrib_optimizer\.py|stage_1_and_2\.py:__init__|stage3\.py:(?:__init__|_setup)"
)


def _sets_up_optimizer(evidence: Evidence) -> bool:
    """Whether masters and states are being made: what is held beyond the weights is theirs."""
    return any(_OPTIMIZER_SETUP.search(f"{f.file}:{f.function}") for f in evidence.frames)


def _surplus(run: Run, evidence: Evidence) -> int | None:
    """What is allocated after loading beyond the weights."""
    weights, held = weight_bytes(run), _loaded(evidence)
    if held is None and evidence.failure is not None and evidence.failure.phase == "load" and not _sets_up_optimizer(evidence):
        held = counters.of(evidence).allocated
    return None if weights is None or held is None else held - weights


def _rotary(run: Run, evidence: Evidence) -> str | None:
    """A cos/sin table for each layer: layers x positions x head_dim x 4 bytes (fp32, half of head_dim each for cos and sin)."""
    surplus, shape, length = _surplus(run, evidence), run.architecture, run.job.batch.seq_len
    if surplus is None or shape is None or length is None or surplus < LEAST:
        return None
    for width in (4, 2, 8):
        tables = shape.layers * length * shape.blocks[0].head_dim * width
        if near(surplus, tables, 0.08):
            product = f"{shape.layers} layers x {length:,} positions x head_dim {shape.blocks[0].head_dim} x {width}"
            return f"{show(surplus)} beyond the weights after loading: {product}, a table in every layer"
    return None


def _second_copy(run: Run, evidence: Evidence) -> str | None:
    surplus, weights = _surplus(run, evidence), weight_bytes(run)
    if surplus is None or weights is None or surplus < LEAST:
        return None
    for times, words in ((0.5, "half a copy (8 bit)"), (1.0, "one more copy"), (2.0, "a copy in twice the width")):
        if near(surplus, times * weights, 0.06):
            return f"{show(surplus)} beyond the {show(weights)} of weights after loading: {words}"
    return None


def _buffers(run: Run, evidence: Evidence) -> str | None:
    surplus, weights = _surplus(run, evidence), weight_bytes(run)
    if surplus is None or weights is None or surplus < max(LEAST, 0.08 * weights) or ledger_of(run) is None:
        return None
    return f"{show(surplus)} are allocated after loading beyond the {show(weights)} of weights"


_MASK = pattern(
    r"torch\.(?:tril|triu|ones|full|zeros)\(.{0,120}?(\w*(?:ctx|block_size|max_pos\w*|max_len\w*|seq_len\w*|length|positions?)|\d{4,6})\W{1,3}(?:[\w.]*\.)?\1\b"
)
_KEPT = pattern(r"register_buffer\(")


def _mask_of_layers(_run: Run, evidence: Evidence) -> str | None:
    """A square mask is a buffer of each attention module, and what is asked for as they are placed is one of them."""
    square = fingerprint.square(evidence)
    failure = evidence.failure
    if square is None or failure is None or any(f.function == "forward" for f in failure.frames):
        return None
    made = next((line for line in evidence.lines if _MASK.search(line.text)), None)
    kept = made is not None and any(_KEPT.search(line.text) for line in evidence.lines)
    return f"{square}: a mask that each layer keeps for itself ({made.where})" if made is not None and kept else None


_OF_AN_ENGINE = pattern(r"^(?:vllm|sglang)/")


def _fault(run: Run, evidence: Evidence) -> Run | None:
    if any(_OF_AN_ENGINE.search(frame.file) for frame in evidence.frames):
        return None  # what an engine fills its share with is no second form of these weights
    surplus = _surplus(run, evidence)
    return run.deviating(extra("weights", bytes=surplus, cause="duplicate-layout")) if surplus is not None and surplus >= LEAST else None


def _reference(run: Run, _evidence: Evidence) -> str | None:
    """What may be one more copy of the weights is the reference that the objective compares with."""
    trains_all = run.job.objective in PREFERENCE | ONLINE and run.job.method.kind == "full" and not colocated(run)
    return f"{run.job.objective} compares with a frozen reference: one more copy is that first of all" if trains_all else None


_OF_PEFT = pattern(r"modules_to_save|ModulesToSave|peft/utils/other\.py")


def _of_peft(evidence: Evidence) -> bool:
    """Whether the module that is copied is one that peft trains beside the adapters (``ModulesToSaveWrapper.update``): a cause of its own."""
    return any(_OF_PEFT.search(f"{f.file}: {f.code}") for f in evidence.frames)


def _copies_data(_run: Run, evidence: Evidence) -> str | None:
    if optimizer_frames.makes_masters(evidence) or not in_phase(evidence, "load", "step"):
        return None  # an optimizer's masters are states of their own
    return "" if evidence.failure is not None and (evidence.failure.requested_bytes or 0) >= LARGE_BUFFER else None


_TWO = pattern(
    r"\b(?:allocated|resident|used?|holds?|memory)\b[^\n]{0,30}?(\d{1,4}(?:\.\d{1,2})?)\s?(?:GiB|GB)\b[^\n]{0,30}\b(?:model|weights|parameters|checkpoint)\b"
    r"[^\n]{0,20}?(\d{1,4}(?:\.\d{1,2})?)\s?(?:GiB|GB)\b",
    re.IGNORECASE,
)


_TWO_REVERSED = pattern(
    r"\b(?:model|weights|params|parameters|checkpoint)\b[^\n]{0,20}?(\d{1,4}(?:\.\d{1,2})?)\s?(?:GiB|GB)\b[^\n]{0,40}?\b(?:allocated|resident)\b"
    r"[^\n]{0,20}?(\d{1,4}(?:\.\d{1,2})?)\s?(?:GiB|GB)\b",
    re.IGNORECASE,
)


def _twice(_run: Run, evidence: Evidence) -> str | None:
    """A line prints what is allocated beside the model's own size, and it is twice that."""
    for line in evidence.lines:
        if (other := _TWO_REVERSED.search(line.text)) is not None and float(other[1]) >= 0.5 and near(float(other[2]), 2 * float(other[1]), 0.08):
            return f"{other[2]} GiB are allocated where the model has {other[1]} ({line.where})"
        found = _TWO.search(line.text)
        if found is not None and float(found[2]) >= 0.5 and near(float(found[1]), 2 * float(found[2]), 0.08):
            return f"{found[1]} GiB are allocated where the model has {found[2]} ({line.where})"
    return None


_LAYER = pattern(r"\b(?:layers?|blocks?)\W{0,3}(\d{1,3})\s?(?:of|/)\s?(\d{1,3})\b", re.IGNORECASE)
LEAST_APART = 0.25  # of all layers, between the first and the last figure


def _layers(_run: Run, evidence: Evidence) -> str | None:
    """In a forward pass what is allocated rises by as much for all layers together as the whole model took when it was loaded.

    A coincidence for activations, whose size follows the batch; certain for a second form of each weight that is made as it is used.
    """
    loaded = _loaded(evidence)
    if loaded is None or loaded < LEAST:
        return None
    points = [(int(m[1]), int(m[2]), s) for s in evidence.samples if s.allocated_bytes and (m := _LAYER.search(s.label)) is not None]
    if len(points) < 3 or len({total for _, total, _ in points}) > 1:
        return None
    (first, total, low), (last, _, high) = points[0], points[-1]
    if last - first < LEAST_APART * total:
        return None
    rise = ((high.allocated_bytes or 0) - (low.allocated_bytes or 0)) * total / (last - first)
    if not near(rise, loaded, 0.1):
        return None
    return f"{show(round(rise))} more for all {total} layers in the forward pass ({high.where}), where loading took {show(loaded)}"


RULE = Rule(
    id="duplicate-layout",
    tier="copies",
    title="Weights or buffers are held twice: in two layouts, or once for each layer",
    cleared="What is allocated after loading is one copy of the weights.",
    prior=-1.0,
    marks=(
        Mark("duplicate-layout-rotary", 4.0, "a table in each layer", "rotary caches built per block (max_seq_len x head_dim, as a buffer)", when=_rotary),
        Mark(
            "duplicate-layout-mask",
            4.0,
            "a mask in each layer",
            "torch.nn.Module.register_buffer: a buffer of every module that registers it; one mask serves all layers of a kind",
            when=_mask_of_layers,
        ),
        Mark(
            "duplicate-layout-of-modules",
            3.0,
            "a registered buffer of a module is being placed, and it is large",
            "torch/nn/modules/module.py _apply: self._buffers[key] = fn(buf); a buffer that every layer registers is there once for each",
            pattern=(
                r"module\.py:_apply: self\._buffers\[key\] = fn\(buf\)|:register_buffer\b|"
                r"\bself\.register_buffer\(.{0,20}(?:mask|bias|alibi|rope|cos|sin|freq)"
            ),
            on="frame",
            # what is registered while text is generated is a cache of keys and values
            when=lambda _, e: "" if e.failure is not None and (e.failure.requested_bytes or 0) >= LARGE_BUFFER and not in_phase(e, "eval", "rollout") else None,
        ),
        Mark(
            "duplicate-layout-copies-data",
            3.0,
            "an existing tensor or storage is copied where a view would do",
            "torch.tensor always copies its data (torch.tensor, note); torch.clone and deepcopy do as they say",
            pattern=r"=\s*torch\.tensor\((?!\s*[\[\d(])|(?:storage|buffer|param|weight|state)\w{0,40}(?:\.data)?\.clone\(\)",
            on="frame",
            when=_copies_data,
        ),
        Mark(
            "duplicate-layout-repeated",
            3.5,
            "what is the same for every sample is repeated for each",
            "torch.Tensor.repeat copies, expand does not: a mask or bias that broadcasts needs one copy",
            pattern=r"\.repeat\(\s*(?:batch_size|bsz|bs|B|b|n|x\.(?:size\(0\)|shape\[0\]))\s*,\s*1\b",
            when=lambda _, e: "" if e.failure is not None and any(_MASKS.search(f"{f.function}: {f.code}") for f in e.failure.frames[-2:]) else None,
        ),
        Mark("duplicate-layout-copy", 2.5, "a second copy", "two layouts of the same tensors", when=_second_copy),
        Mark("duplicate-layout-twice", 3.0, "twice the model", "memory_allocated after loading beside the parameters' bytes", when=_twice),
        Mark("duplicate-layout-surplus", 1.0, "more than weights", "memory_allocated after loading less the parameters' bytes", when=_buffers),
        Mark(
            "duplicate-layout-remainder",
            1.5,
            "a copy more",
            "the estimate's ledger against the printed counters",
            when=lambda run, e: remainder.matching(run, e, "weights-copy"),
        ),
        Mark(
            "duplicate-layout-reference",
            -2.0,
            "a frozen reference",
            "trl, DPO-like and online objectives: a second model is the method's own, unless the base is it already",
            when=_reference,
        ),
        Mark(
            "duplicate-layout-average",
            2.5,
            "a second model is kept on purpose: an average or a copy",
            "torch.optim.swa_utils.AveragedModel and EMA classes deep-copy the module to its device",
            pattern=r"deepcopy\(\s*([\w.]+\(\s*)?(self\.)?\w*(model|net|module)\b|parameter\.py:__deepcopy__|AveragedModel\(|\bEMA\(|EMAModel\(|ema_model\s*=|swa_utils|"
            r"\bema_\w+\.(?:to|cuda)\(|(?:^|/)\w*ema(?:_\w+)?\.py:\w+: [^\n]*(?:deepcopy|clone)\(",
            when=lambda run, e: "" if run.job.objective not in ("dpo", "kto", "grpo", "ppo", "rloo") and not _of_peft(e) else None,
        ),
        Mark(
            "duplicate-layout-of-parameters",
            3.0,
            "each parameter is copied and the copy is kept",
            "trl callbacks.py BEMACallback.on_train_begin, averages and snapshots of weights: param.detach().clone() in a loop over all of them",
            pattern=r"(?:=|\[|append\()\s*(?:p|param|parameter|w)(?:\.data|\.detach\(\)){1,2}\.clone\(\)|(?:=|\[|append\()\s*(?:p|param|parameter)\.clone\(\)",
            on="frame",
            when=lambda _, e: "" if in_phase(e, "load", "step", None) and not optimizer_frames.makes_states(e) else None,
        ),
        Mark(
            "duplicate-layout-sampler",
            2.8,
            "whole models are placed for a sample beside those that are trained",
            "diffusers examples' log_validation: DiffusionPipeline.from_pretrained loads what it is not given, and pipeline.to places all of it",
            pattern=r"pipelines/pipeline_utils\.py:to\b|\bpipe(?:line)?\.to\(",
            on="frame",
            when=lambda _, e: "" if in_phase(e, "eval", "rollout") else None,
        ),
        Mark(
            "duplicate-layout-average-step",
            3.0,
            "a moving average of the weights is being updated or stored",
            "diffusers training_utils.py EMAModel.step, store, load_state_dict; timm ModelEmaV2.update; torch swa_utils update_parameters: each weight again",
            pattern=(
                r"(?:^|[\s.(])(?:\w*_)?ema(?:_\w+)?\.(?:step|update\w*|store|restore|copy_to|load_state_dict)\(|"
                r":update_(?:ema|average)\w*|:ema_update\w*|:update_parameters\b"
            ),
            on="frame",
        ),
        Mark(
            "duplicate-layout-whole-update",
            3.2,
            "the adapter's update is formed at the full size of the weights in the forward pass",
            "peft tuners/lora/layer.py ParamWrapper._activate_lora (target_parameters): the update of all experts, as large as their weights, is kept for the "
            "backward pass",
            pattern=r"tuners/lora/layer\.py:_activate_lora\b",
            on="frame",
            when=lambda _, e: "" if in_phase(e, "forward", "backward", None) else None,
        ),
        Mark(
            "duplicate-layout-average-asked",
            1.5,
            "a moving average of the weights is asked for",
            "latent-diffusion use_ema, timm model_ema, NeMo exp_manager ema.enable: a copy of every weight, on the card unless it is told otherwise",
            pattern=r"(?:^|[._])(?:use_ema|model_ema|with_ema|enable_ema|ema[._]enabled?)=True",
            on="key",
        ),
        Mark(
            "duplicate-layout-by-token",
            3.2,
            "the weights of the chosen experts are copied for each token",
            "transformers integrations/moe.py batched_mm_experts_forward: an index by token and expert copies a whole matrix for each pair",
            pattern=(
                r"batched_mm_experts_forward: \w+ = [\w.]*(?:proj|weight)\w*\[\w*(?:expert|idx|index)\w*\]|"
                r":forward: \w*weights? = self\.\w*(?:proj|weight)\w*\[\w*expert\w*\]"
            ),
            on="frame",
        ),
        Mark(
            "duplicate-layout-orders",
            3.5,
            "the 8-bit weight is kept in the card's own order beside the one that was loaded",
            "bitsandbytes before 0.45 autograd/_functions.py MatMul8bitLt: state.CxB = F.transform(state.CB, to_order=formatB) beside CB",
            pattern=r"\bCxBt?\b[^\n]{0,40}=\s*(?:\w+\.)*transform\(",
            on="frame",
        ),
        Mark("duplicate-layout-layers", 3.0, "each layer leaves its weights again", "allocated after each layer against what was loaded", when=_layers),
        Mark(
            "duplicate-layout-int8",
            3.0,
            "the 16-bit weight is kept beside its 8-bit form",
            "bitsandbytes Int8Params(has_fp16_weights=True) keeps both in training",
            pattern=r"has_fp16_weights?['\"]?\s*[=:]\s*True",
        ),
        Mark(
            "duplicate-layout-state",
            2.0,
            "a state dict is read onto the device beside the model",
            "safetensors.torch.load_file(device=...), torch.load(map_location=cuda): a second set of weights until it is deleted",
            pattern=r"load_file\([^)]*device\s*=\s*['\"]?(cuda|device|rank)|state_dict\s*=\s*\{[^}]*\.cuda\(|safe_open\([^)]*device\s*=\s*['\"]?cuda",
        ),
        Mark(
            "duplicate-layout-code",
            1.5,
            "buffers are counted apart from parameters",
            "torch.nn.Module.buffers: tensors that move with the model and are not parameters",
            pattern=r"\.buffers\(\)|rope_init|cos_cached|sin_cached|freqs_cis|inv_freq",
        ),
        Mark("duplicate-layout-snapshot", 4.0, "held twice in the snapshot", snapshots.SOURCE, when=lambda _, e: snapshots.duplicates(e)),
        Mark(
            "duplicate-layout-snapshot-mixed",
            -2.0,
            "a working copy beside fp32 weights",
            "mixed precision keeps both on purpose",
            when=lambda run, e: (
                "mixed precision keeps fp32 weights and a 16-bit copy" if snapshots.duplicates(e) and run.job.precision.master == "fp32" else None
            ),
        ),
        Mark(
            "duplicate-layout-loads-twice",
            1.5,
            "the same model is loaded twice",
            "two modules with the same weights",
            pattern=r"^code\.(loads-twice)=",
            on="key",
            when=lambda run, _: "" if run.job.objective not in ("dpo", "kto", "grpo", "ppo", "rloo") else None,
        ),
    ),
    fault=_fault,
    remedies=("drop-duplicate-layout", "shorter-sequence", "share-rollout-weights", "upgrade"),
    fires=(
        Example(
            "a mask in every layer",
            text="self.register_buffer('bias', torch.tril(torch.ones(24576, 24576, dtype=torch.bool)))\n"
            + trace("gpt.py|build|self.layers[i].cuda(i // 12)")
            + oom("576.00 MiB", allocated=38.9, capacity=39.39),
        ),
        Example(
            "a rotary table in every layer",
            job=job(batch="{micro_batch: 1, seq_len: 131072}", precision="{weights: bf16}", framework="{name: torchtune}"),
            text=(
                "Memory stats after model init:\n\tGPU peak memory allocation: 16.96 GiB\n\tGPU peak memory reserved: 17.04 GiB\n\tGPU peak memory "
                "active: 16.96 GiB\n"
            ),
        ),
    ),
    quiet=(
        Example(
            "an optimizer keeps the parameters as they were",
            text=trace("prodigyopt/prodigy.py|step|state['p0'] = p.detach().clone()") + oom("50.00 MiB", allocated=15.1, capacity=15.99),
        ),
        Example(
            "an engine in the trainer's process fills its share",
            job=job("Qwen/Qwen2.5-7B", objective="grpo", precision="{weights: bf16}"),
            text=trace(
                "trl/trainer/grpo_trainer.py|__init__|self.llm = LLM(",
                "vllm/worker/worker.py|_init_cache_engine|CacheEngine(self.cache_config, self.model_config,",
                "vllm/worker/cache_engine.py|_allocate_kv_cache|layer_kv_cache = torch.zeros(kv_cache_shape,",
            )
            + oom("1.99 GiB", allocated=78.3),
        ),
        Example(
            "a mask that is made in the forward pass",
            text="mask = torch.tril(torch.ones(24576, 24576, dtype=torch.bool, device=x.device))\n"
            + trace("gpt.py|forward|scores = scores.masked_fill(mask, -inf)")
            + oom("576.00 MiB", allocated=38.9, capacity=39.39),
        ),
        Example("in the step", job=job(batch="{micro_batch: 8, seq_len: 4096}"), text=oom("512.00 MiB", allocated=76.5)),
    ),
)
