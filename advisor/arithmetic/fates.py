"""The fate of a weight tensor under a method: quantised, frozen, trained, adapted."""

from __future__ import annotations

import re

from advisor.architecture import Architecture, Tensor
from advisor.job import Job

FUSED_EXPERTS = frozenset({"gpt_oss", "llama4", "llama4_text", "dbrx", "granitemoe", "granitemoehybrid", "granitemoeshared", "jetmoe"})
# Layers trained at a time: LISA's and ms-swift's usual 2 (paper 2403.17919), one block (BAdam 2404.02827), LLaMA-Factory's freeze_trainable_layers 2
ACTIVE = {"lisa": 2, "badam": 1, "freeze": 2}
ADAPTED = frozenset({"lora", "dora"})
# Families whose experts were modules in transformers 4 and are 3-D parameters since 5: peft adapts these in their place, where all linears (since 0.20) or
# the modules' old names (since 0.19) are targeted (peft utils/transformers_weight_conversion.py, by transformers' _MODEL_TO_CONVERSION_PATTERN, 5.24)
CONVERTED = frozenset({
    "mixtral", "minimax", "minimax_m2", "qwen3_moe", "afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "glm4_moe",
    "glm4_moe_lite", "glm4v_moe", "qwen3_next", "hunyuan_v1_moe", "flex_olmo", "olmoe", "exaone_moe", "cohere2_moe", "glm_moe_dsa", "longcat_flash",
    "solar_open", "mellum", "beam", "sarvam_mla",
})  # fmt: skip
AS_MODULES = CONVERTED | {"qwen2_moe", "phimoe", "jamba"}  # modules before 5 too, which peft does not look for by their old names
AT_LOAD = frozenset({"nf4", "fp4", "int8"})  # bitsandbytes' layouts: made of the nn.Linear modules that are there when a model is loaded
ATTENTION_QV = ("q_proj", "v_proj", "query_key_value", "qkv_proj", "c_attn", "Wqkv", "query", "value", "q", "v", "qkv")


def experts_are_linear(arch: Architecture, job: Job) -> bool:
    """Whether each expert's matrices are ``nn.Linear`` modules, which quantisers and adapters find.

    transformers holds most families' experts as modules before version 5 and as one 3-D parameter a layer since; a few families were
    always fused. GPTQ and AWQ checkpoints are made of linear modules whatever the version.

    transformers 5 leaves fused experts in 16 bit (integrations/bitsandbytes.py replace_with_bnb_linear looks for ``nn.Linear``), where most
    of such a model is: who quantises one has the version that does it, unless a version is named (:func:`version_open`).
    """
    if job.method.base in ("gptq-int4", "awq-int4"):
        return True
    if job.framework.name == "axolotl" and job.method.base not in (None, "none"):
        return True  # axolotl quantize_moe_experts quantises the fused tensors too
    if job.framework.name == "unsloth" and arch.model_type == "gpt_oss" and job.method.base in AT_LOAD:
        return True  # unsloth_zoo temporary_patches/gpt_oss.py GptOssExperts: a list of nn.Linear for each of the two products
    if (job.model.source or "huggingface") != "huggingface" or arch.model_type in FUSED_EXPERTS:
        return False
    if version_open(arch, job):
        return True
    major = re.match(r"(\d+)", (job.framework.versions or {}).get("transformers", ""))
    return major is not None and int(major.group(1)) < 5


def version_open(arch: Architecture, job: Job) -> bool:
    """Whether a version that nobody names decides if most of the model is quantised: bitsandbytes over a family whose experts became one parameter."""
    named = "transformers" in (job.framework.versions or {})
    hub = (job.model.source or "huggingface") == "huggingface" and job.framework.name != "axolotl"
    return not named and hub and job.method.base in AT_LOAD and arch.model_type in AS_MODULES


def experts_adapted(arch: Architecture, job: Job) -> bool:
    """Whether peft puts adapters on the fused experts' parameters; both versions must be known to be new enough."""
    versions, targets = job.framework.versions or {}, job.method.targets
    if job.method.kind != "lora" or (job.model.source or "huggingface") != "huggingface" or arch.model_type not in CONVERTED:
        return False
    if not _at_least(versions.get("transformers"), (5,)):
        return False
    if targets == "all-linear":
        return _at_least(versions.get("peft"), (0, 20))
    named = targets if isinstance(targets, (list, tuple)) else ()
    return {"gate_proj", "up_proj", "down_proj"} <= set(named) and _at_least(versions.get("peft"), (0, 19))


def _at_least(version: str | None, wanted: tuple[int, ...]) -> bool:
    found = re.match(r"(\d+)(?:\.(\d+))?", version or "")
    return found is not None and tuple(int(part or 0) for part in found.groups()) >= wanted


def unfused(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same experts as modules: gate and up apart, each a linear layer."""
    out: list[Tensor] = []
    for t in tensors:
        if t.role != "expert" or t.linear or len(t.shape) != 2:
            out.append(t)
        elif t.name == "gate_up_proj":
            half = (t.shape[0] // 2, t.shape[1])
            out.extend(Tensor(name, half, "expert", True, t.times) for name in ("gate_proj", "up_proj"))
        else:
            out.append(Tensor(t.name, t.shape, "expert", True, t.times))
    return tuple(out)


def tower_of(job: Job) -> str:
    """What becomes of a vision tower: as the job says, else by whose habit it is.

    peft looks for modules by name or kind wherever they stand, so a tower gets adapters too; ms-swift and LLaMA-Factory leave it out
    (``freeze_vit``, ``freeze_vision_tower``: true unless set).
    """
    said = job.model.vision.tower if job.model.vision else None
    return said or ("frozen" if job.framework.name in ("ms-swift", "llama-factory") and (job.method.kind or "full") in ADAPTED else "trained")


def projects(arch: Architecture, job: Job) -> bool:
    """Whether the projection to the text is frozen with the tower: Qwen's merger is a part of it (``visual``), ms-swift and LLaMA-Factory freeze both."""
    return arch.model_type.startswith("qwen") or job.framework.name in ("ms-swift", "llama-factory")


class Fates:
    """Which tensors are adapted, quantised, trained."""

    def __init__(self, arch: Architecture, job: Job) -> None:
        m = job.method
        self.kind = m.kind or "full"
        self.adapted = self.kind in ADAPTED
        self.rank = m.rank or 8  # peft LoraConfig's default
        self.adapters = m.adapters or 1
        self.dora = self.kind == "dora"
        self.layout = m.base or "none"
        self.saved = frozenset(m.modules_to_save or ())
        targets = m.targets
        if targets is None:
            targets = "qv" if self.adapted else ()
        self.targets: str | frozenset[str] = targets if isinstance(targets, str) else frozenset(targets)
        self.tower = tower_of(job)
        self.whole = projects(arch, job)
        self.tied = arch.tied
        self.experts = experts_adapted(arch, job)

    def wants(self, t: Tensor, *, seeing: bool = False) -> bool:
        """Whether the tensor gets an adapter; ``seeing``: it is of the tower's layers."""
        if seeing and self.tower == "frozen":
            return False
        if self.experts and t.role == "expert" and len(t.shape) >= 2:
            return True
        if not self.adapted or not t.linear or len(t.shape) < 2 or t.role in ("embedding", "position", "norm"):
            return False
        if t.role in ("vision", "projector") and self.tower == "frozen":
            return False
        leaf = t.name.rpartition(".")[2]
        if isinstance(self.targets, frozenset):
            return leaf in self.targets or t.name in self.targets
        if t.role == "head":
            return False
        if self.targets == "all-linear":
            return True
        if self.targets == "attention":
            return t.role == "attention"
        return t.role == "attention" and leaf in ATTENTION_QV

    def of(self, t: Tensor, *, seeing: bool = False) -> str:
        """quantised, frozen or trained; ``seeing``: it is of the tower's layers."""
        if seeing and self.tower == "frozen" and not self.adapted:
            return "frozen"
        if self.tower == "frozen" and (t.role == "vision" or (t.role == "projector" and self.whole)):
            return "frozen"
        if not self.adapted:
            return "trained"
        leaf = t.name.rpartition(".")[2]
        if leaf in self.saved or t.name in self.saved:
            return "trained"
        quantisable = t.linear and len(t.shape) >= 2 and t.role not in ("embedding", "head", "position", "norm")
        if self.layout == "mxfp4":
            quantisable = t.role == "expert" and len(t.shape) >= 2
        elif self.layout in ("gptq-int4", "awq-int4"):
            quantisable = quantisable and t.role not in ("router", "vision", "projector")
        return "quantised" if self.layout != "none" and quantisable else "frozen"
