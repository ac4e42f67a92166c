"""What people say a run uses: a strategy, a method, an optimizer, checkpointing; and whether they state it, weigh it or deny it.

People compare such things as often as they use them, so a sentence that weighs them states none; a denial ("without LoRA", "LoRA is not
enabled") takes back the one thing that it names and leaves the rest of its sentence standing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.reading.pattern import pattern as lazily
from advisor.reading.spoken_frameworks import frameworks_in

_SENTENCE = lazily(r"(?<=[.!?;])\s+(?=[A-Z`(])|(?<=[。！？；])\s*(?=\S)")
_STAGE = lazily(r"(?<![A-Za-z])zero[-_ ]{0,2}\(?(?:stage[-_ ]{0,2})?[=: ]{0,2}([123])(?![A-Za-z0-9_])", re.IGNORECASE)
_FSDP = lazily(r"(?<![\w/.-])FSDP ?-?(2|v2)?(?![\w/]|\.\w)", re.IGNORECASE)
_METHOD = lazily(  # a letter of Chinese ends no word of Latin ones for \b
    r"(?:(?<![A-Za-z0-9_/.-])|(?<=\bw/))(?:(QLoRA)|(LoRA)|full(?:[- ]parameter|[- ]model)? ?(?:fine-?\s?tun\w+|FT\b|SFT\b))(?![A-Za-z0-9_/.=-])|"
    r"全(?:参数?量?|量参?数?)(?:微调|训练|精调)",
    re.IGNORECASE,
)
_QUANTISED = lazily(r"\bload_in_([48])bit\s?=\s?True\b")
_IN_BITS = lazily(r"(?<![\w.])\d{1,3}(?:\.\d)?[Bb][- ](?:\w{1,10} )?(?:in )?([48])[- ]?bit\b(?! ?(?:adam|optim|paged))", re.IGNORECASE)  # "Qwen2-VL-7B 4bit"
_PEFT = lazily(r"\b(?:with|pass\w*|using|use) (?:a |the )?(?:peft_config|LoraConfig)\b", re.IGNORECASE)
ENGINE = lazily(r"vllm|sglang", re.IGNORECASE)
COLOCATED = lazily(
    r"\b(?:vllm|sglang)\b[^.;]{0,60}\b(?:co-?locat\w+|same (?:gpus?|cards?)|shar(?:e|es|ing) the (?:gpu|card)s?)\b|"
    r"\bco-?locat\w+\b[^.;]{0,40}\b(?:vllm|sglang)\b",
    re.IGNORECASE,
)
FRACTION = lazily(r"\bgpu_memory_utilization\b\W{0,4}(?:of |is )?(0?\.\d{1,3})\b")
_OBJECTIVE = lazily(r"(?<![\w/.-])(DPO|GRPO|KTO|ORPO|RLOO|PPO)(?:Trainer)?(?![\w/.-])", re.IGNORECASE)
_USED = r"\b(?:with|using|uses?|by|plain|vanilla|optimi[sz]er(?: is| was)?[ :=]+)\s?{0}\b(?![./-]\w)|(?<![\w./-]){0} optimi[sz]er\b"
_OPTIMIZERS = tuple(
    (name, lazily(text, re.IGNORECASE))
    for name, text in (
        ("paged-adamw-8bit", r"\bpaged[-_ ]adamw?[-_ ]8[-_ ]?bit\b|\b8[- ]?bit paged adamw?\b"),
        ("adamw-8bit", r"(?<!paged[-_ ])\badamw?[-_ ]?(?:bnb[-_ ])?8[-_ ]?bit\b|\b8[- ]?bit[- ]adamw?\b"),
        ("adafactor", r"\badafactor\b"),
        *((name, _USED.format(name)) for name in ("sgd", "lion", "muon")),  # short names stand for other things too
    )
)
_OFFLOADS = lazily(
    r"\boptimi[sz]er[- ]offload\w*|\boffload\w* (?:the )?optimi[sz]er\b|\b(?:stage[- ]?|zero[- ]?)[23]\b[^.;]{0,20}\bcpu[- ]offload\w*", re.IGNORECASE
)
_RECOMPUTED = lazily(
    r"((?:\b(?:no|without|not using|disabled?|sans|ohne|senza|sin|sem|bez|zonder) |(?:不用|不开|没有|没开|未开启|关闭) ?))?"
    r"(?<![A-Za-z_.-])(?:gradient|activation|grad)[ -](?:checkpointing|ckpt)\b(?!\W{0,3}(?:\w+ )?(?:off|false|disabled))",
    re.IGNORECASE,
)
# "no LoRA", "without QLoRA", "not using ZeRO-3"; "LoRA is not enabled", "FSDP is off", "LoRA: false"
_DENIED_BEFORE = lazily(
    r"\b(?:no|without|not using|don't use|didn't use|never|disabled?|turned off|removed|nor|sans|ohne|sin|sem|senza) (?:any |the |peft )?$|"
    r"(?:不用|没用|没有用?|没有?使用|未使用|不使用|非) ?$",
    re.IGNORECASE,
)
# what belongs to the next thing denies nothing of this one: "LoRA, no gradient checkpointing", "FSDP: no offload", "off-the-shelf"
_CLOSES = r"(?=\s*(?:[,.;:!?)|，。；]|$|(?:and|but|here)\b))"
_DENIED_BEHIND = lazily(
    r"^(?:[ -](?:adapters?|offload\w*|mode|training|fine-?tuning))?[\"'`]?(?:"
    r" (?:is|was|are)(?: not|n't) (?:enabled|used|on|active)\b| (?:is|was|are) (?:disabled|off|false)\b(?!-)|"
    rf"(?:\s?[=:]\s?| \(?|\()(?:not (?:enabled|used|on|active)|disabled|off|false){_CLOSES}|\s?[=:]\s?no{_CLOSES})",
    re.IGNORECASE,
)
_WEIGHED = lazily(
    r"\bwith (?:and|or)\b|\b(?:same|identical|unchanged|both)\b|"
    r"\b(?:not|n't|can't|cannot|instead|should(?! (?:i|we|it|this)\b)|would(?! (?:it|this|that)\b)|could(?! (?:i|we)\b)|"
    r"tried|try(?! to (?:load|train|fine|run|start)\w*\b)|switch\w*|vs\.?|versus|what (?:does|is|are)|how does|"
    r"(?<!larger )(?<!bigger )(?<!more )(?<!smaller )(?<!less )(?<!longer )than)\b|吗|怎么(?!办|解决|处理|回事)|如何(?!解决|处理)",
    re.IGNORECASE,
)
_OR = lazily(r"\bor\b|还是|或者?", re.IGNORECASE)
BESIDE_OR = 9  # characters between a claim and the "or" that weighs it: "FSDP or DeepSpeed", not "LoRA on a 4090 or 5090"


def claims_of(text: str) -> Iterator[tuple[str, str]]:
    """What a line says of strategy, method and checkpointing, as (field, value); of one that is weighed rather than stated also ``weighed``."""
    for sentence in _SENTENCE.split(text):
        rest, denied = _without_denials(sentence)
        found = [("parallel.strategy", f"zero{m[1]}") for m in _STAGE.finditer(rest)]
        found += [("parallel.strategy", f"fsdp{'2' if m[1] else '1'}") for m in _FSDP.finditer(rest)]
        found += [("method.kind", "qlora" if m[1] else "lora" if m[2] else "full") for m in _METHOD.finditer(rest)]
        found += [("method.kind", "lora")] if _PEFT.search(rest) else []
        found += [("method.base", "int8" if m[1] == "8" else "nf4") for named in (_QUANTISED, _IN_BITS) for m in named.finditer(rest)]
        if (engine := COLOCATED.search(rest)) is not None and (named := ENGINE.search(engine[0])) is not None:
            found += [("rollout.engine", named[0].lower()), ("rollout.placement", "colocated")]
        found += [("objective", m[1].lower()) for m in _OBJECTIVE.finditer(rest)]
        found += [("optimizer.name", name) for name, named in _OPTIMIZERS if named.search(rest)][:1]
        found += [("offload.optimizer", "cpu")] if _OFFLOADS.search(rest) else []
        found += [("framework.name", name) for name in frameworks_in(rest)]
        found += [("activations.checkpointing", "none" if m[1] else "full") for m in _RECOMPUTED.finditer(rest)]
        yield from found
        if found and _WEIGHED.search(_RECOMPUTED.sub(" ", rest)):
            yield from ((field, "weighed") for field, _ in found)
        yield from ((field, "weighed") for field in _beside_or(rest))
        for field, instead in denied:
            stated = {value for named, value in found if named == field}
            if stated - {"full"}:  # what is trained whole has no adapters: denying them says the same again
                yield field, "weighed"  # "without LoRA it fails, with LoRA it runs"
            elif instead:
                yield field, instead


def _beside_or(sentence: str) -> Iterator[str]:
    """The fields of which a claim stands beside an "or"."""
    if _OR.search(sentence) is None:
        return
    mentions = (("parallel.strategy", _STAGE), ("parallel.strategy", _FSDP), ("method.kind", _METHOD), ("objective", _OBJECTIVE))
    for field, named in (*mentions, ("activations.checkpointing", _RECOMPUTED)):
        for m in list(named.finditer(sentence))[:20]:
            if _OR.search(sentence, max(0, m.start() - BESIDE_OR), m.start()) or _OR.search(sentence, m.end(), m.end() + BESIDE_OR):
                yield field


def _without_denials(sentence: str) -> tuple[str, list[tuple[str, str]]]:
    """The sentence without what it denies, and (field, what the denial says instead, if anything) of each."""
    denied: list[tuple[str, str]] = []
    cuts: list[tuple[int, int]] = []
    for field, named in (("parallel.strategy", _STAGE), ("parallel.strategy", _FSDP), ("method.kind", _METHOD), ("objective", _OBJECTIVE)):
        for m in list(named.finditer(sentence))[:20]:
            before, behind = _DENIED_BEFORE.search(sentence[max(0, m.start() - 30) : m.start()]), _DENIED_BEHIND.match(sentence[m.end() : m.end() + 40])
            if before is None and behind is None:
                continue
            denied.append((field, "full" if named is _METHOD and m[2] else ""))
            cuts.append((m.start() - (len(before[0]) if before else 0), m.end() + (behind.end() if behind else 0)))
    for start, end in sorted(cuts, reverse=True):
        sentence = sentence[:start] + sentence[end:]
    return sentence, denied
