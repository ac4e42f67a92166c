"""What a reporter says the mechanism is: "vLLM keeps its KV cache during the backward pass", "every rank loads the full model".

A statement of what happens counts, a question, a wish, a negation does not. It weighs less than a frame or a counter: who writes it has
looked, and may err. Each expression is made of the mechanism's own nouns and the usual verbs in either order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.reading.told import sentences
from advisor.rules.rule import Mark
from advisor.run import Run

WEIGHT = 2.5  # about twelve times: a named mechanism is rarely another one's
WEAK = {"logits": 1.5, "eval-batch": 1.5, "activations": 1.5}  # what many mechanisms end in
SHORTEST, LONGEST, MOST = 20, 1500, 400  # characters of a line, lines that are looked at
_ASKED = pattern(r"\?\s*$|\b(?:is it|does it|could it|would it|should I|how (?:do|can|to)|maybe|perhaps|I (?:suspect|guess|wonder)|not sure)\b", re.IGNORECASE)
_PRINTED = pattern(r"ried to allocate[^\n]{0,40}\bGPU \d|try setting|reserved by PyTorch")  # the allocator's sentences, alike for every failure
# within what is said to be so: "vLLM holds nothing", "does not free"; not of the expressions that are about what is not done
_DENIES = pattern(r"(?<!could )\b(?:not|never|nothing|no)\b(?! (?:freed|released|enough|room|longer|only))|n't\b", re.IGNORECASE)
_OF_WHAT_IS_NOT = frozenset(
    {"quantization-not-applied", "fp8-not-smaller", "kernel-unsupported", "loss-fallback", "checkpointing-off", "default-fp32-load", "rollout-budget"}
)
_DENIED = pattern(r"\b(?:not|no|isn't|is not|doesn't|does not|never|rule[sd]? out|unlikely|unrelated)\b[^.;,]{0,20}$", re.IGNORECASE)

_ALL = r"(?:whole|full|entire|complete|all(?: the)?)"
_MODEL = r"(?:\d+B )?(?:model|weights|checkpoint|parameters|params|state(?:[ _]dict)?)"
_CARD = r"(?:GPUs?|cards?|ranks?|devices?|process(?:es)?)"
_KEEPS = r"(?:keep\w*|kept|hold\w*|held|stay\w*|remain\w*|occup\w+|resident|retain\w*|never freed|not (?:freed|released))"
_WIDENS = r"(?:up-?cast\w*|cast\w*|convert\w*|widen\w*|promot\w+|keep\w*|kept|store\w*|stay\w*|become\w*|(?:is|are|were) (?:in|stored in|kept in))"
_WIDE = r"(?:fp32|float32|full precision|32[- ]bit)"
_GOES = r"(?:go(?:es)? through|gather\w*|consolidat\w+|collect\w*|all-?gather\w*|unshard\w*|materiali[sz]\w+)"


def _either(a: str, b: str, gap: int = 60) -> str:
    """One beside the other within a sentence, in either order."""
    return rf"\b{a}\b[^.?!;]{{0,{gap}}}\b{b}\b|\b{b}\b[^.?!;]{{0,{gap}}}\b{a}\b"


SAYS: Mapping[str, str] = {
    "other-process": (
        rf"\b(?:another|other|someone(?: else)?'s|previous|earlier|crashed|dead|old)\b[^.?!;,]{{0,30}}\b(?:process|user|job|run|"
        rf"program|notebook|kernel)\w*\b[^.?!;]{{0,40}}\b(?:{_KEEPS}|us(?:es|ing)|tak(?:es|ing))\b[^.?!;]{{0,40}}\b(?:\d+ ?(?:GB|"
        rf"GiB|MiB)|memory|GPU|card)\b"
    ),
    "moved-before-sharding": (
        r"\b(?:mov\w+|\.to\(|\.cuda\(|put\w*|plac\w+|send\w*|cop\w+)[^.?!;]{0,60}\b(?:GPU|device|cuda|card)\b"
        r"[^?!;]{0,60}\bbefore\b[^.?!;]{0,40}\b(?:FSDP|shard\w*|wrap\w*|divid\w+|partition\w*|fully_shard|deepspeed)"
    ),
    "sharding-inactive-at-load": (
        rf"\b(?:each|every|all)\b[^.?!;]{{0,20}}\b{_CARD}\b[^.?!;]{{0,12}}\bload\w*\b[^.?!;]{{0,20}}\b{_ALL} {_MODEL}[^?!;]{{0,80}}"
        rf"\b(?:before|shard\w*|partition\w*|zero|FSDP|deepspeed)"
    ),
    "duplicate-layout": (
        rf"\b(?:two|both|second|duplicate\w*|extra|additional|2) (?:\w+ ){{0,2}}(?:cop(?:y|ies)|versions?|layouts?|"
        rf"sets?) of (?:the )?(?:\w+ ){{0,2}}(?:model|weights|parameters|params|buffers?|tables?|embeddings?)\b|\bweights? (?:are|"
        rf"is|take|takes) (?:\w+ )?(?:twice|stored twice|duplicated)|\boriginal\b[^.?!;]{{0,30}}\bcopy of the (?:weights|model)\b"
        rf"[^.?!;]{{0,40}}\b(?:still|{_KEEPS})"
    ),
    "reference-copy": _either(
        r"(?:frozen |extra |separate |second )?(?:ref(?:erence)?[ _]?model|reward model|critic model|teacher(?: model)?)",
        rf"(?:{_KEEPS}|beside|besides|in addition to|next to|loaded|second copy|another copy|doubl\w+)",
    ),
    "rollout-resident": (
        rf"\b(?:vllm|sglang|rollout|inference|generation)(?: engine)?(?:'s)?\b[^.?!;]{{0,40}}\b{_KEEPS}\b[^.?!;]{{0,80}}"
        rf"\b(?:train\w*|backward|update|optimizer|actor)\b|\b(?:vllm|sglang)\b[^.?!;]{{0,30}}\b(?:KV cache|weights)\b"
        rf"[^.?!;]{{0,40}}\b{_KEEPS}\b"
    ),
    "rollout-budget": (
        r"\b(?:gpu_memory_utilization|mem[-_]fraction[-_]static|memory fraction)\b[^?!;]{0,60}\b(?:leaves?|too (?:high|large|big|"
        r"low|small)|no room|little (?:room|memory)|not enough|nothing left)\b"
    ),
    "weight-sync-overlap": (
        r"\b(?:weight[s ]?(?:sync\w*|transfer|update)|sync\w* (?:the )?weights|refit\w*|update_weights|wake[_ ]?up)\b[^.?!;]{0,80}"
        r"\b(?:OOM\w*|out of memory|together|both|at the same time|twice|overlap\w*|beside)"
    ),
    "saved-module-copy": (
        r"\bmodules_to_save\b[^?!;]{0,80}\b(?:cop(?:y|ies)|duplicat\w+|extra|more|twice|full)\b|\b(?:embed_tokens|lm_head|"
        r"embeddings?)\b[^.?!;]{0,60}\b(?:full|second|extra|trainable) cop(?:y|ies)\b"
    ),
    "gradients-unsharded": (
        rf"\bno_sync\b[^?!;]{{0,100}}\b(?:{_ALL}|unsharded|whole|unreduced)(?: \w+){{0,2}} gradients?\b|\b(?:unsharded|"
        rf"unreduced) gradients?\b[^.?!;]{{0,60}}\b{_KEEPS}\b"
    ),
    "gradient-buffer-wide": _either(
        _WIDE + r"(?: \w+){0,2} (?:grad\w* )?(?:buffers?|accumulat\w+)",
        r"(?:grad\w*|accumulate_allreduce_grads_in_fp32|bytes per parameter)",
    ),
    "retained-objects": (
        rf"\b(?:old|previous|earlier|first) (?:trainer|model|run|engine|optimizer|fold|trial)(?: object)?\b[^.?!;]{{0,40}}"
        rf"\b(?:{_KEEPS}|still(?! (?:works?|worked|fits?|runs?|ran|trains?|loads?|fine))|alive|referenced|in memory|not (?:freed|released|deleted))\b"
    ),
    "decode-cache-in-training": (
        r"^(?![^\n]*\b(?:vllm|sglang|rollout)\b)[^\n]*\b(?:use_cache|past_key_values|KV cache)\b[^?!;]{0,40}\b(?:during|in|"
        r"while) (?:the )?(?:training|forward|fine-?tuning)\b|\buse_cache\s*=?\s*(?:True|on|enabled)\b[^?!;]{0,60}\btrain\w*"
    ),
    "eval-accumulation": (
        r"\b(?:evaluat\w+|eval|validation|predict\w*)\b[^?!;]{0,60}\b(?:collect\w*|accumulat\w+|concatenat\w+|gather\w*|"
        r"keeps? all|stores? all)\b[^.?!;]{0,40}\b(?:logits|predictions|outputs|preds|GPU|memory)\b|"
        r"\beval_accumulation_steps\W{1,3}\d+[^.?!;]{0,30}\b(?:fix\w*|help\w*|solv\w*|works?)\b"
    ),
    "save-gather": rf"\b(?:sav(?:e|es|ing)|checkpoint(?:ing)? (?:save|saving))\b[^?!;]{{0,60}}\b{_GOES}\b[^.?!;]{{0,40}}\b(?:{_ALL} )?{_MODEL}\b",
    "resume-on-device": (
        r"\b(?:resum\w+|torch\.load|load\w* the checkpoint)\b[^?!;]{0,80}\b(?:optimizer state|state|checkpoint|weights)\b"
        r"[^?!;]{0,30}\b(?:on|to|onto) (?:the )?(?:GPU|card|device|cuda)"
    ),
    "merge-dequantizes": r"\bmerg\w+\b[^?!;]{0,80}\b(?:dequanti[sz]\w*|full precision|fp16|bf16|16[- ]bit)\b",
    "default-fp32-load": (
        rf"\b(?:load\w*|from_pretrained|weights)\b[^.?!;]{{0,60}}\b{_WIDE}\b[^.?!;]{{0,20}}\b(?:by default|since|because|"
        rf"default)\b|\bby default\b[^.?!;]{{0,30}}\bload\w*\b[^.?!;]{{0,30}}\b{_WIDE}\b|\b(?:no|without|forgot|"
        rf"missing) (?:the )?(?:torch_)?dtype\b(?! (?:mismatch|issue|problem|error|conver|cast|change|warning))"
    ),
    "kbit-upcast": rf"\bprepare_model_for_(?:kbit|int8)_training\b[^?!;]{{0,60}}\b(?:{_WIDENS}|{_WIDE})\b",
    "framework-upcast": (
        rf"\b(?:FSDP\w*|accelerate|prepare\(?\)?)\b[^?!;]{{0,60}}\b{_WIDE} cop(?:y|ies)\b|\b(?:FSDP\w*|accelerate|trainer|"
        rf"deepspeed|wrapper|prepare\(?\)?|autocast|peft|llama-?factory|axolotl)\b[^.?!;]{{0,50}}\b{_WIDENS}\b"
        rf"[^.?!;]{{0,40}}\b{_WIDE}\b"
    ),
    "quantization-not-applied": (
        r"\b(?:load_in_[48]bit|quanti[sz]\w*|4[- ]?bit|8[- ]?bit|nf4|int8|mxfp4)\b[^?!;]{0,60}\b(?:does nothing|ignored|(?:not|"
        r"isn't|aren't|never) (?:\w+ )?(?:quanti[sz]ed|applied)|skipp\w+|stay\w* in (?:bf16|fp16|bfloat16|float16|16)|"
        r"are still (?:bf16|fp16|bfloat16|float16|16)|no effect|dequanti[sz]ed)"
    ),
    "fp8-not-smaller": (
        r"\b(?:fp8|float8)\b[^.?!;]{0,60}\b(?:does not|doesn't|did not|didn't|isn't|not|no)\b[^.?!;]{0,20}\b(?:less|reduc\w+|"
        r"lower|sav\w+|halv\w+|smaller)\b"
    ),
    "attention-fallback": (
        r"\b(?:fall\w*|fell) ?back\b[^.?!;]{0,30}\b(?:math|eager|naive|slow|vanilla|standard|unfused)\b|\bmateriali[sz]\w+\b"
        r"[^.?!;]{0,30}\b(?:attention|score)s?(?: \w+)?"
    ),
    "loss-fallback": (
        r"\b(?:liger|fused|chunked|cut)\b[^.?!;]{0,40}\b(?:cross[- ]entropy|loss|kernel\w*)\b[^.?!;]{0,40}"
        r"\b(?:not (?:\w+ )?(?:used|applied|active|patched|supported)|isn't|bypass\w*|disabled|skipp\w+|ignored|falls? back)\b"
    ),
    "kernel-unsupported": (
        r"\b(?:T4|V100|P100|P40|Turing|Volta|Pascal|\d080(?: ?Ti)?|card|GPU)s?\b[^.?!;]{0,30}\b(?:does not|doesn't|do not|don't|"
        r"cannot|can't)\b[^.?!;]{0,16}\b(?:support|have|has|run|use|handle)\w*\b(?:(?!\bwithout\b)[^.?!;]){0,12}\b(?:bf16|bfloat16|fp8|flash)|"
        r"\b(?:has|have|with) no (?:(?:native|hardware|real) )?(?:bf16|bfloat16|fp8|flash)|\b(?:bf16|bfloat16|fp8)\b[^.?!;]{0,30}\bemulat\w+"
    ),
    "fragmentation": (
        r"\b(?:due to|because of|caused by|it is|looks like|severe|heavy) (?:memory |heavy |severe |CUDA )?fragmentation\b|"
        r"\bfragmentation (?:is|causes|makes|grows|problem|issue)\b|\breserved\b[^.?!;]{0,50}\b(?:grow\w*|increas\w+|"
        r"climb\w*|ris\w+)\b[^.?!;]{0,40}\ballocated\b[^.?!;]{0,30}\b(?:same|constant|flat|stays?|steady|stable)|"
        r"\bexpandable_segments\b[^.?!;]{0,30}\b(?:fix\w*|help\w*|solv\w*|works?|resolv\w*)\b"
    ),
    "graph-pools": (
        r"\b(?:each|every|new|another|many|different)\b[^.?!;]{0,60}\b(?:captur\w*|record\w*|cuda ?graphs?)\b[^.?!;]{0,60}"
        r"\b(?:cuda ?graphs?|pools?)\b|\b(?:each|every)\b[^.?!;]{0,40}\b(?:own|new|another) cuda ?graph"
    ),
    "optimizer-temporary": (
        r"\b(?:foreach|multi[-_]tensor|optimizer(?:\.step)?)\b[^?!;]{0,60}\b(?:temporar\w+|intermediate\w*|temp)\b[^.?!;]{0,60}"
        r"\b(?:parameters|params|size|large|copy|tensors?)\b|\bforeach\s?=\s?False\b[^.?!;]{0,30}\b(?:fix\w*|help\w*|solv\w*|"
        r"works?|fits)"
    ),
    "replicated-state": (
        rf"\b(?:DDP|data[- ]parallel|each|every)\b[^.?!;]{{0,40}}\b(?:holds?|keeps?|needs?|stores?|replicat\w+)\b"
        rf"[^.?!;]{{0,30}}\b{_ALL}\b[^.?!;]{{0,20}}\b(?:optimizer|adam|gradients?)\b"
    ),
    "communication-buffers": (
        r"\b(?:bucket(?:_size)?|prefetch\w*|all-?gather|reduce_bucket_size|allgather_bucket_size|communication)\b[^?!;]{0,60}"
        r"\b(?:buffers?|allocat\w+)\b[^.?!;]{0,30}\b(?:\d+ ?(?:GB|GiB)|memory|large|huge|OOM)"
    ),
    "projection-temporary": (
        r"\b(?:galore|apollo|low-rank)\b[^.?!;]{0,50}\b(?:SVD|projection|projector|decomposition)\b|\bSVD\b[^.?!;]{0,50}"
        r"\b(?:galore|lm_head|embedding|gradient)\b"
    ),
    "logits": (
        r"\blogits?\b[^.?!;]{0,50}(?:\b\d+(?:\.\d+)? ?(?:GB|GiB)|\b(?:huge|large|OOM\w*|memory|float32|fp32)\b)|\b(?:OOM\w*|"
        r"out of memory)\b[^.?!;]{0,40}\b(?:logits|cross[-_ ]entropy|lm_head|log_softmax)\b"
    ),
    "checkpointing-off": (
        rf"\b(?:gradient|activation) checkpointing\b[^.?!;]{{0,16}}\b(?:is|was) (?:not (?:enabled|on|used|set|active)|off|"
        rf"disabled)\b|\b{_ALL}\b[^.?!;]{{0,16}}\bactivations\b[^.?!;]{{0,20}}\b(?:kept|stored|saved|retained)\b"
    ),
    "padding": (
        r"\bpadd(?:ed|ing)\b[^.?!;]{0,40}\b(?:max(?:imum)?(?:_| )?len\w*|\d{3,6})\b[^?!;]{0,60}\b(?:mean|average|median|only|most|"
        r"short\w*)\b|\b(?:mostly|\d{2} ?%) (?:\w+ )?padding\b"
    ),
    "eval-batch": (
        r"\b(?:per_device_)?eval(?:uation)?[_ ](?:micro[_ ])?batch(?:[_ ]size)?\b[^?!;]{0,60}\b(?:larger|bigger|default|OOM\w*|"
        r"out of memory|too (?:large|big))"
    ),
    "needless-recomputation": r"\bcheckpointing\b[^.?!;]{0,30}\b(?:on|enabled)\b[^?!;]{0,60}\b(?:only|just|free|unused|%)",
    "needless-offload": r"\boff-?load\w*\b[^?!;]{0,60}\b(?:free|unused|idle|only \d+ ?(?:%|GB)|plenty)\b",
    "allocator-retries": (
        r"\b(?:num_alloc_retries|alloc\w* retries|cudaMalloc retries|cache flush\w*)\b[^.?!;]{0,40}\b(?:ris\w+|grow\w*|increas\w+|"
        r"many|\d{2,})"
    ),
    "driver-spill": (
        r"\bshared (?:GPU )?memory\b(?![^.?!;]{0,20}\bshm\b)[^.?!;]{0,60}\b(?:slow\w*|x slower|instead of|spill\w*)|\bspill\w*\b[^.?!;]{0,30}\b(?:shared|"
        r"system|host) (?:GPU )?(?:memory|RAM)"
    ),
}  # fmt: skip


@cache
def _compiled(cause: str) -> re.Pattern[str]:
    return re.compile(SAYS[cause], re.IGNORECASE)


def where(evidence: Evidence, cause: str) -> str | None:
    """Where the mechanism of a cause is stated; ``None`` where it is not, or only asked for or denied."""
    expression = _compiled(cause)
    if "stated-lines" not in evidence.noted:
        told = (line for line in evidence.lines[:MOST] if SHORTEST <= len(line.text) <= LONGEST and " " in line.text.strip())
        lines = [line for line in told if not _PRINTED.search(line.text) and not line.text.lstrip().startswith(("#", "//"))]  # a script's remarks
        evidence.noted["stated-lines"] = lines
    for line in evidence.noted["stated-lines"]:
        if expression.search(line.text) is None:
            continue
        for sentence in sentences(line.text):
            found = expression.search(sentence)
            if found is None or (cause not in _OF_WHAT_IS_NOT and _DENIES.search(found[0])):
                continue
            if not _ASKED.search(sentence) and not _DENIED.search(sentence[: found.start()]):
                place: str = line.where
                return place
    return None


def mark(cause: str) -> Mark:
    """The mark of a rule whose mechanism a text may state."""

    def when(_run: Run, evidence: Evidence) -> str | None:
        found = where(evidence, cause)
        return None if found is None else f"it is said to be so ({found})"

    source = "the mechanism in a reporter's words"
    return Mark(f"{cause}-in-words", WEAK.get(cause, WEIGHT), "it is said to be so", source, pattern=SAYS[cause], on="line", when=when)
