"""Small questions about a run and its failure that several rules ask."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.frameworks import defaults
from advisor.reading.pattern import pattern
from advisor.resolving.versions_shown import bounds
from advisor.rules import counters
from advisor.rules.estimating import ledger_of
from advisor.run import Run

DIVIDES_WEIGHTS = frozenset({"zero3", "fsdp1", "fsdp2", "megatron-fsdp"})
DIVIDES_GRADIENTS = DIVIDES_WEIGHTS | {"zero2"}
DIVIDES_OPTIMIZER = DIVIDES_GRADIENTS | {"zero1", "megatron-distributed"}
TRAINING = frozenset({"forward", "loss", "backward", "step"})
PREFERENCE = frozenset({"dpo", "kto", "orpo"})
ONLINE = frozenset({"grpo", "ppo", "rloo"})
ADAPTER = frozenset({"lora", "dora"})
_ALL_PARAMS = re.compile(  # peft PeftModel.print_trainable_parameters; nanoGPT, Lightning's summary; a dtype and a count printed together
    r"all params: ([\d,]{4,20})|(?:number of|total|all) (?:trainable )?(?:params|parameters)\W{1,4}([\d.,]{1,20}) ?([MBK])?\b|"
    r"torch\.(?:float32|bfloat16|float16)[\s,]+(\d{8,13})\s*$",
    re.IGNORECASE,
)
_SCALE = {"K": 10**3, "M": 10**6, "B": 10**9}
_SIZE_IN_NAME = pattern(r"(?<![A-Za-z0-9.])(\d{1,4}(?:\.\d{1,2})?)[bB](?![A-Za-z0-9])")
_SIZE_SAID = pattern(
    r"(?<![\w.-])(?<!\d)(\d{1,3}(?:\.\d{1,2})?) ?(?:B|b|billion)(?![A-Za-z0-9])(?! ?(?:tokens|samples|images|pairs|examples|steps))", re.IGNORECASE
)
_SIZE_SAID_CHINESE = pattern(r"(?<![A-Za-z0-9.])(\d{1,3}(?:\.\d{1,2})?)[Bb](?![A-Za-z0-9])")
_OF_A_MODEL = pattern(
    r"model|模型|param|参数|\bLLM|llama|vicuna|qwen|mistral|chatglm|baichuan|fine-?tun|微调|\bq?lora\b|\bSFT\b|\bDPO\b|\bGRPO\b", re.IGNORECASE
)
QUANTISED = frozenset({"nf4", "fp4", "int8", "gptq-int4", "awq-int4", "fp8", "mxfp4"})


def phase(evidence: Evidence) -> str | None:
    """The phase of the failure, where frames or text settle it."""
    failure = evidence.failure
    return failure.phase if failure is not None else None


def in_phase(evidence: Evidence, *phases: str | None) -> bool:
    """Whether the failure happened in one of these phases (``None``: in one that is not settled)."""
    return phase(evidence) in phases


def sharded(run: Run) -> bool:
    """Whether the strategy divides the weights over ranks."""
    return run.job.parallel.strategy in DIVIDES_WEIGHTS


_NO_FRAMEWORK = frozenset({"torch", "cuda", "python", "numpy"})


def uncertain(run: Run, path: str) -> bool:
    """Whether a value is only a default or an assumption that has alternatives, with no version of the framework known.

    The defaults' tables then give what the newest version does, which is no evidence about an older run. A default that every version
    in the tables has is as good as known.
    """
    fact, framework = run.facts.get(path), run.job.framework
    if fact is None or fact.kind not in ("default", "assumed") or not fact.alternatives:
        return False
    if fact.kind == "default":
        generating = run.job.rollout is not None or run.job.objective in PREFERENCE
        table = defaults.rules(framework.name, tuple(sorted((framework.versions or {}).items())), generating, bounds(run.seen)).get(path, ())
        own = next((rule for rule in table if rule.where == fact.where), None)
        if own is not None:
            return bool(own.alternatives)
    return not (set(framework.versions or {}) - _NO_FRAMEWORK)


def gpus_known(run: Run) -> bool:
    """Whether the number of GPUs was read or stated, or follows from parallel sizes that were."""
    paths = ("hardware.gpus_per_node", "hardware.nodes", "parallel.shard", "parallel.replicate", "parallel.tensor", "parallel.pipeline")
    return any((fact := run.facts.get(p)) is not None and fact.kind in ("stated", "read") for p in paths)


def gpus(run: Run) -> int:
    """How many GPUs the job uses: what the parallel sizes say, else cards a node times nodes."""
    hardware = run.job.hardware
    return max(run.world, (hardware.gpus_per_node or 1) * (hardware.nodes or 1))


_MORE_GPUS = pattern(
    r"nproc[-_]per[-_]node[ =]+([2-9]|\d\d)|(?:num[-_]processes|WORLD_SIZE|world_size|nranks|gpus_per_node|num_gpus|n_gpus\w*)\W{1,4}([2-9]|\d\d)\b|"
    r"(?:CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES)\W{1,3}\d+,\d|\bGPU [1-9]\b|cuda:[1-9]|--include \S*:\d+,\d|"
    r"(?<![\w.])([2-9]|\d\d)\s?(?:x|×|\*)\s?(?:NVIDIA )?(?:A100|H100|H200|H800|A800|A10G?|A6000|L40S?|V100|T4|B200|RTX|MI\d{3}|[34]090)\b|"
    r"(?<![\w.])([2-9]|\d\d) (?:A100s?|H100s?|GPUs|gpus|cards)\b"
)  # launchers' flags and variables, device names of torch and nvidia-smi, "8x A100"


def names_more_gpus(run: Run, evidence: Evidence) -> str | None:
    """Where the job or the text speaks of more than one GPU; ``None``: nothing does, and one process is what was meant."""
    if gpus(run) > 1:
        return "the job's own sizes"
    if len(evidence.devices) > 1:
        return evidence.devices[1].where
    if any((f.gpu or 0) > 0 or (f.rank or 0) > 0 for f in evidence.failures):
        return next(f.where for f in evidence.failures if (f.gpu or 0) > 0 or (f.rank or 0) > 0)
    return next((line.where for line in evidence.lines if _MORE_GPUS.search(line.text)), None)


def parameters(run: Run, evidence: Evidence | None = None) -> int | None:
    """The model's parameters: of its shape, else as PEFT prints them, else as the model's name says (``-7B-``, ``13B/params.json``)."""
    if run.architecture is not None:
        return run.architecture.parameters
    if evidence is not None:
        for line in evidence.lines:
            found = _ALL_PARAMS.search(line.text)
            if found and (count := _count(found)) is not None:
                return count
    named = [run.job.model.name or ""]
    if evidence is not None:
        named += [str(v) for _, k, v in evidence.seen_keys if any(word in k.lower() for word in ("model", "config", "checkpoint", "pretrained"))]
    sizes = [_SIZE_IN_NAME.search(name) for name in named]
    of_name = next((round(float(m.group(1)) * 1e9) for m in sizes if m is not None), None)
    return of_name if of_name is not None or evidence is None or run.job.model.name is not None else _size_said(evidence)


def _size_said(evidence: Evidence) -> int | None:
    """The size that a sentence gives a model (``a 13B model``): that of the sentence that tells of the failure before any other, its last one."""
    failure = evidence.failure
    texts = [failure.text] if failure is not None and dict(failure.details).get("told") else []
    for number, text in enumerate([*texts, *(line.text for line in evidence.lines)]):
        if len(text) <= 600 and _OF_A_MODEL.search(text):
            sizes = _SIZE_SAID.findall(text) or _SIZE_SAID_CHINESE.findall(text)
            if sizes and 0.05 <= (size := float(sizes[-1 if number < len(texts) else 0])) <= 700:
                return round(size * 1e9)
    return None


def _count(found: re.Match[str]) -> int | None:
    whole, total, unit, shown = found.groups()
    if whole or shown:
        digits = (whole or shown).replace(",", "")
        return int(digits) if digits else None
    try:
        value = float(total.replace(",", "")) * _SCALE.get((unit or "").upper(), 1)
    except ValueError:
        return None
    return round(value) if value >= 10**6 else None


def smallest_batch(run: Run) -> str | None:
    """Whether what scales with the batch is at its least already: one sequence, recomputed, as it is written."""
    batch, checkpointing = run.facts.get("batch.micro_batch"), run.facts.get("activations.checkpointing")
    written = all(f is not None and f.kind in ("stated", "read") for f in (batch, checkpointing))
    least = written and run.job.batch.micro_batch == 1 and run.job.activations.checkpointing == "full"
    return "the micro batch is 1 and checkpointing is on already" if least and (run.job.batch.seq_len or 0) <= 2048 else None


def not_one_sample(evidence: Evidence) -> str | None:
    """Whether every batch size was tried down to none (accelerate's find_executable_batch_size says so itself)."""
    failure = evidence.failure
    return "every batch size was tried, down to none" if failure is not None and dict(failure.details).get("what") == "one sample" else None


def weight_bytes(run: Run, width: float | None = None, evidence: Evidence | None = None) -> int | None:
    """All weights of the model at a width (bytes a parameter; that of ``precision.weights`` where none is given)."""
    count = parameters(run, evidence)
    if count is None:
        return None
    if width is None:
        width = 4 if run.job.precision.weights == "fp32" else 2
    return round(count * width)


def held_weights(run: Run) -> int | None:
    """The weights that one rank holds by the estimate, in their layout; ``None`` without an estimate."""
    ledger = ledger_of(run)
    if ledger is None:
        return None
    return sum(h.bytes for h in ledger.peak().holdings if h.part == "weights")


def nearly_full(evidence: Evidence) -> bool:
    """Whether the job itself holds at least nine tenths of the card."""
    figures, failure = counters.of(evidence), evidence.failure
    if failure is not None and failure.backend == "mps":  # Apple's text prints what MPS holds and the limit, no reserved bytes
        return bool(failure.allowed_bytes and failure.allocated_bytes and failure.allocated_bytes >= 0.9 * failure.allowed_bytes)
    return bool(figures.capacity and figures.reserved and figures.reserved >= 0.9 * figures.capacity)


def colocated(run: Run) -> bool:
    """Whether a generation engine shares the card."""
    rollout = run.job.rollout
    return rollout is not None and rollout.placement != "separate"


def checkpoints(run: Run) -> bool:
    """Whether activation checkpointing is configured."""
    return run.job.activations.checkpointing in ("full", "selective")


def near(value: float, target: float, relative: float = 0.05) -> bool:
    """Whether two sizes agree within a share of the second."""
    return target > 0 and abs(value - target) <= relative * target


_OPTIMIZER_SETUP = pattern(
    r"initialize_optimizer_states|_setup_for_real_optimizer|_configure_(zero|bf16|fp16)_optimizer|_create_optimizer|create_optimizer", re.IGNORECASE
)


_MOVES = pattern(r"nn/modules/module\.py:(to|cuda|_apply|convert)\b")
_LOADERS = pattern(r"from_pretrained|load_\w*model|load_pretrained|checkpoint|state_dict|get_model|dispatch|deepspeed|prepare|engine", re.IGNORECASE)


_OF_A_BLOCK = pattern(r"modeling_\w+\.py:\w+: [^\n]*\bself\.(?:(?!lm_head)\w*proj|act_fn|mlp|fc\d|dense\w*|self_attn|attention|experts|gate)\(")


def in_block(evidence: Evidence) -> bool:
    """Whether the innermost line of modelling code is one of a block's own: its request is of the block's widths, never of the vocabulary's."""
    for frame in reversed(evidence.failure.frames if evidence.failure is not None else ()):
        if "modeling_" in frame.file:
            return _OF_A_BLOCK.search(f"{frame.file}:{frame.function}: {frame.code}") is not None
    return False


_SECOND = pattern(
    r"create_(?:ref(?:erence)?|reward|critic|teacher)_model|:_?(?:build|make|load|init|get)_(?:ref(?:erence)?|reward|critic|teacher)_(?:model|policy)|"
    r": (?:self\.)?(?:ref(?:erence)?_model|ref_policy)\s*=(?!=)(?!\s*None\b)"
)


def builds_second(evidence: Evidence) -> bool:
    """Whether the failing frames make a second, frozen model: what is held then is of two."""
    return any(_SECOND.search(f"{frame.file}:{frame.function}: {frame.code}") for frame in evidence.frames)


def loads_weights(evidence: Evidence) -> bool:
    """Whether the failure comes while weights are loaded, and not while the optimizer is set up after them."""
    if not in_phase(evidence, "load"):
        return False
    frames = [f"{frame.file}:{frame.function}: {frame.code}" for frame in evidence.frames]
    if any(_MOVES.search(text) for text in frames[-4:]) and not any(_LOADERS.search(text) for text in frames):
        return False  # what was loaded before is moved
    return not any(_OPTIMIZER_SETUP.search(f"{frame.function}: {frame.code}") for frame in evidence.frames)


_WRAPS = pattern(  # "torch/distributed/fsdp/_fully_shard/" is a folder, whose hooks run in every forward pass
    r"_prepare_fsdp2|fsdp2_(?:prepare_model|load_full_state_dict)|:?fully_shard\b(?!/)|FullyShardedDataParallel\(|\bFSDP\(|fully_sharded_data_parallel\.py:__init__|"
    r"_auto_wrap|_init_param_handle",
    re.IGNORECASE,
)


# torch/distributed/fsdp/_flat_param.py FlatParamHandle.shard and _get_shard: the call and the line that cut a rank's part out of the whole
_CUTS = pattern(r"\bhandle\.shard\(\)|\bshard = chunk\.clone\(\)|\b_init_param_handle_from_\w+")


def wraps(evidence: Evidence) -> bool:
    """Whether the failure comes while a model that was loaded before is divided by FSDP."""
    frames = [f"{frame.file}:{frame.function}: {frame.code}" for frame in evidence.frames]
    if not frames:
        return any(_CUTS.search(line.text) for line in evidence.lines)
    return any(_WRAPS.search(text) for text in frames) and not any("from_pretrained" in text for text in frames)


_OWN_MOVE = pattern(r"\.(?:cuda\(|to\([^)]*(?:cuda|device|rank))|:_move_model_to_device|:model_to_device|:place_model_on_device", re.IGNORECASE)
_OWN_FILE = pattern(r"^[\w.-]+\.py:|^(?:transformers/trainer|lightning/|pytorch_lightning/)")


def moved_whole(evidence: Evidence) -> bool:
    """Whether the script or its trainer moves a whole module: not a wrapper that is about to divide it."""
    frames = [f"{frame.file}:{frame.function}: {frame.code}" for frame in evidence.frames]
    return any(_MOVES.search(text) for text in frames[-4:]) and any(_OWN_FILE.search(text) and _OWN_MOVE.search(text) for text in frames)


def weights_exceed(run: Run, evidence: Evidence) -> str | None:
    """Whether the weights that one rank has to hold are larger than the card: then it fails before any activation exists."""
    from advisor.rules.counters import of

    capacity = of(evidence).capacity or (run.usable[0] if run.usable else None)
    held = held_weights(run)
    if held is None and run.job.method.base not in QUANTISED:
        whole = weight_bytes(run, 2.0, evidence)
        held = None if whole is None else whole // (gpus(run) if sharded(run) or (run.job.parallel.tensor or 1) > 1 else 1)
    if held is None or capacity is None or held < capacity:
        return None
    return f"the weights of one rank are {held / 2**30:.1f} GiB, more than the card: it fails before there are activations"


def moves_module(evidence: Evidence) -> bool:
    """Whether the failing frames move a whole module to the device: before any step."""
    failure = evidence.failure
    return failure is not None and any(_MOVES.search(f"{f.file}:{f.function}") for f in failure.frames[-4:]) and not in_phase(evidence, "eval", "save")
