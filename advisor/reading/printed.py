"""Facts that a run prints of itself: batch sizes, world size, card, versions, allocator settings.

Sources: transformers ``trainer.py`` ("Instantaneous batch size per device", "Gradient Accumulation steps"), accelerate ``state.py`` ("Num
processes: 8"), deepspeed ``launcher/launch.py`` ("dist_world_size=8"), torchrun's environment (WORLD_SIZE, LOCAL_WORLD_SIZE), unsloth's banner
("NVIDIA A100-SXM4-40GB. Num GPUs = 1. Max memory: 39.39 GB"), vllm ``worker/worker.py`` ("the
current vLLM instance can use total_gpu_memory (79.10GiB) x gpu_memory_utilization (0.90)"), sglang ``ServerArgs`` ("mem_fraction_static=0.85"),
``transformers-cli env``, ``torch.utils.collect_env``, ``pip freeze``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor import cards
from advisor.evidence import Fact
from advisor.reading.banners import loops_of
from advisor.reading.lines import Excerpt, LogLine
from advisor.reading.merge import GUESS, PRINTED, PROSE, Ranked
from advisor.reading.pattern import pattern as lazily

_PACKAGES = (
    r"torch|pytorch|transformers|accelerate|peft|trl|deepspeed|bitsandbytes|flash[-_ ]?attn|flash_attention|vllm|sglang|axolotl|unsloth(?:_zoo)?|"
    r"liger[-_]kernel|xformers|torchtune|"
    r"torchao|torchtitan|megatron[-_]core|transformer[-_ ]engine|TE|triton|datasets|llamafactory|llama[-_]factory|lightning|pytorch[-_]lightning|verl|"
    r"openrlhf|jax|jaxlib|nccl|"
    r"sentence[-_]transformers|ms[-_]swift|swift|torch[-_]npu|litgpt|cuda|cudnn|python|ray|fairscale|apex|tensorflow|kernels"
)
_VERSION = lazily(
    rf"(?<![\w/.-])[`\"']?({_PACKAGES})[`\"']?(?: version)?(?: \(GPU\?\))?\s{{0,3}}(?:==|>=|~=|=|:|@|-v|\bv)?\s{{0,12}}"
    r"v?(\d{1,4}\.\d{1,4}(?:\.\w{1,12}){0,3}(?:\+[\w.]{1,20})?)(?![\w-])",
    re.IGNORECASE,
)
_OF_ANOTHER = lazily(
    r"\b(?:works?|worked|fine|loads? (?:fine|successfully|in \S{1,8})|succe\w+|downgrad\w+|roll\w* back|revert\w*|(?:upgrad\w+|switch\w+|moved) from)\b"
    r"(?:(?!\b(?:but|fails?|failed|not|oom)\b)[^.!?;,]){0,40}$",
    re.IGNORECASE,
)
_DOTTED = lazily(r"\d\.\d")
_SAME = {
    "pytorch": "torch", "flash-attn": "flash_attn", "flash attn": "flash_attn", "flashattn": "flash_attn", "flash_attention": "flash_attn",
    "te": "transformer_engine", "transformer-engine": "transformer_engine", "transformer engine": "transformer_engine",
    "liger-kernel": "liger_kernel", "megatron-core": "megatron_core", "llama-factory": "llamafactory", "llama_factory": "llamafactory",
    "pytorch-lightning": "lightning", "pytorch_lightning": "lightning", "ms-swift": "swift", "ms_swift": "swift",
    "sentence-transformers": "sentence_transformers", "torch-npu": "torch_npu",
}  # fmt: skip

_TRAINING: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("batch.micro_batch", lazily(r"Instantaneous batch size per device\s*=\s*([\d,]{1,9})", re.IGNORECASE)),
    ("batch.gradient_accumulation", lazily(r"Gradient Accumulation steps\s*=\s*([\d,]{1,9})", re.IGNORECASE)),
)
_BATCH = lazily(r"(?:^|>>|-)\s*Batch size\s*=\s*(\d{1,7})\s*$")
_WORLD = lazily(
    r"\bWORLD_SIZE\s*[=:]\s*(\d{1,6})\b|\bworld[_ ]size['\"]?\s*(?:[=:]|\.{2,60})?\s*(\d{1,6})\b|\bNum processes:\s*(\d{1,6})|"
    r"dist_world_size\s*=\s*(\d{1,6})",
    re.IGNORECASE,
)
_LAUNCHED = lazily(r"\b(?:torchrun|deepspeed|accelerate launch|python3? -m torch\.distributed\.\w+)\s")  # sets it anew for its workers
_LOCAL = lazily(r"\bLOCAL_WORLD_SIZE\s*[=:]\s*(\d{1,6})", re.IGNORECASE)
_NODES = lazily(r"\b(?:SLURM_NNODES|SLURM_JOB_NUM_NODES|NNODES|NNODE)\s*[=:]\s*(\d{1,6})|\bnnodes\s*=\s*(\d{1,6})", re.IGNORECASE)
_ALLOC = lazily(r"\bPYTORCH_(?:CUDA_|HIP_|NPU_)?ALLOC_CONF\s*[=:]\s*[\"']?([a-zA-Z_][\w:,.\[\]>=-]{2,200})")
_VLLM_SHARE = lazily(r"total_gpu_memory \([\d.]{1,10} ?Gi?B\) x gpu_memory_utilization \(([01]?\.\d{1,4}|1)\)")
_SGLANG_SHARE = lazily(r"mem[-_]fraction[-_]static['\"]?\s{0,2}[=: ]\s{0,2}([01]?\.\d{1,4})")
_ADVICE = lazily(r"try setting|See documentation", re.IGNORECASE)
_CARD = lazily(
    r"(?:^|\b)(?:GPU|Device|Device name|Accelerator)(?: type| \d+)?\s*[:=]\s*((?:NVIDIA|AMD|Tesla|GeForce|RTX|GTX|Quadro|A\d|H\d|B\d|L\d|"
    r"V100|T4|P100)[\w .-]{1,60}?)(?:\s+[x×]\s*(\d{1,4}))?\s*(?:[,;(|]|$)"
)
_UNSLOTH = lazily(r"((?:NVIDIA|Tesla|AMD|GeForce)[\w .()/-]{1,60}?)\. Num GPUs = (\d{1,4})\. Max memory: ([\d.]{1,10}) ?GB")
_NOTEBOOK = lazily(r"\bGPU = ((?:NVIDIA|Tesla|AMD|GeForce)[\w .()/-]{1,60}?)\. Max memory = ([\d.]{1,10}) ?GB")  # Unsloth's notebooks
_TYPES = lazily(
    r"^\s*(?:- )?(?:GPU type|GPU models and configuration|Using GPU in script\?:.*)\s*:?\s*((?:GPU \d+: )?(?:NVIDIA|AMD|Tesla|"
    r"GeForce)[\w .()/-]{1,60})",
    re.IGNORECASE,
)


def facts_of(text: Excerpt) -> Iterator[Ranked]:
    """Facts of one text's lines."""
    loops = loops_of(text)
    gate = re.compile(r"\d")
    for line in text.lines:
        content = line.text
        if len(content) < 4 or gate.search(content) is None:
            continue
        where = text.where(line)
        for field, pattern in _TRAINING:
            if (m := pattern.search(content)) is not None:
                yield Ranked(_fact(field, int(m[1].replace(",", "")), where, content), PRINTED)
        loop = loops.get(line.number)
        if loop is not None and (m := _BATCH.search(content)) is not None:
            if loop == "evaluation":
                yield Ranked(_fact("eval.micro_batch", int(m[1]), where, content), PRINTED)
            else:  # scripts of one's own; of one card or of all, they do not say
                yield Ranked(_fact("batch.micro_batch", int(m[1]), where, content), PROSE)
        yield from _versions(content, where)
        yield from _launch(line, where)


def _versions(content: str, where: str) -> Iterator[Ranked]:
    if _DOTTED.search(content) is None or 'File "' in content or len(content) > 4000:
        return
    for m in list(_VERSION.finditer(content))[:40]:
        if _OF_ANOTHER.search(content[max(0, m.start() - 80) : m.start()]):
            continue  # "works fine on transformers 4.48": not the one that failed
        name = m[1].lower()
        yield Ranked(_fact(f"framework.versions.{_SAME.get(name, name)}", m[2].rstrip("."), where, content), PROSE)


def _launch(line: LogLine, where: str) -> Iterator[Ranked]:
    content = line.text
    if (m := _WORLD.search(content)) is not None and not _LAUNCHED.search(content, m.end()):
        world = int(next(g for g in m.groups() if g is not None))
        if 1 <= world <= 16:  # larger worlds span nodes, whose number this line does not say
            yield Ranked(_fact("hardware.gpus_per_node", world, where, content), PRINTED if world == 1 else PROSE)
    if (m := _LOCAL.search(content)) is not None:
        yield Ranked(_fact("hardware.gpus_per_node", int(m[1]), where, content), PRINTED)
    if (m := _NODES.search(content)) is not None:
        yield Ranked(_fact("hardware.nodes", int(m[1] or m[2]), where, content), PROSE)
    if "ALLOC_CONF" in content and not _ADVICE.search(content) and (m := _ALLOC.search(content)) is not None:
        for key, value in allocator(m[1]).items():
            yield Ranked(_fact(f"framework.allocator.{key}", value, where, content), PRINTED)
    for engine, pattern in (("vllm", _VLLM_SHARE), ("sglang", _SGLANG_SHARE)):
        if (m := pattern.search(content)) is not None:
            yield Ranked(_fact("rollout.memory_fraction", float(m[1]), where, content), PRINTED)
            yield Ranked(_fact("rollout.engine", engine, where, content), PRINTED)
    if (m := _UNSLOTH.search(content)) is not None:
        yield from _cards(m[1], int(m[2]), where, content, round(float(m[3]) * 2**30))
    elif (m := _NOTEBOOK.search(content)) is not None:
        yield from _cards(m[1], 1, where, content, round(float(m[2]) * 2**30))
    elif (m := _CARD.search(content)) is not None:
        yield from _cards(m[1], int(m[2]) if m[2] else None, where, content, None)
    elif (m := _TYPES.search(content)) is not None:
        yield from _cards(re.sub(r"^GPU \d+: ", "", m[1]), None, where, content, None)


def _cards(name: str, count: int | None, where: str, content: str, total: int | None) -> Iterator[Ranked]:
    card = cards.find(name.strip(), total)
    if card is not None:
        yield Ranked(_fact("hardware.gpu", card.id, where, content), PRINTED)
    if count is not None:
        yield Ranked(_fact("hardware.gpus_per_node", count, where, content), GUESS)


def allocator(setting: str) -> dict[str, bool | int | float | str]:
    """``expandable_segments:True,max_split_size_mb:128`` as a mapping (c10 ``CUDAAllocatorConfig``)."""
    out: dict[str, bool | int | float | str] = {}
    for part in setting.split(",")[:20]:
        key, found, value = part.partition(":")
        key = key.strip()
        if not found or not re.fullmatch(r"[a-zA-Z_]\w{1,40}", key):
            continue
        value = value.strip().strip("\"'")
        if value.lower() in ("true", "false"):
            out[key] = value.lower() == "true"
        elif re.fullmatch(r"\d{1,12}", value):
            out[key] = int(value)
        elif re.fullmatch(r"\d{1,6}\.\d{1,9}", value):
            out[key] = float(value)
        else:
            out[key] = value[:60]
    return out


def _fact(field: str, value: object, where: str, text: str) -> Fact:
    return Fact(field, value, "read", where, text=text.strip()[:200])
