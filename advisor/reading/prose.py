"""What people write beside the files: "8 x A100-SXM4-40GB", "batch 16, source 512", "Llama-3.1-8B on an RTX 4090?", comments in scripts.

Such a remark fills what nothing else says; a config that says otherwise wins, and the difference is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from advisor import cards
from advisor.architecture import presets
from advisor.evidence import Fact
from advisor.reading import degrees
from advisor.reading.merge import PROSE, Ranked
from advisor.reading.pattern import pattern as lazily

_CARD = (
    r"(?:NVIDIA |AMD |Tesla |GeForce |Quadro |Instinct )*(?:"
    r"(?:A100|H100|H200|H800|A800|H20|GH200|GB200|GB300|B100|B200|B300|V100|P100|P40|T4|L4|L40S?|A10G?|A16|A30|A40|A2|MI\d{3}[XA]?|TITAN (?:RTX|V|Xp?))"
    r"|RTX ?(?:PRO )?A?\d{4}(?: ?Ti)?(?: ?SUPER)?(?: Ada(?: Generation)?| Blackwell)?|A[456]000(?: Ada)?|GTX ?\d{3,4}(?: ?Ti)?|"
    r"[345]0[5-9]0(?: ?Ti)?(?= (?:GPU|card|24|laptop))|TPU ?v\d\S{0,6}|"
    r"(?:Apple )?M[1-5](?: (?:Pro|Max|Ultra))|(?:Ascend )?910B\d?"
    r")(?:[- ](?:SXM\d?|PCIe|PCI-E|NVL|HBM\d?e?))*(?:[- ]?\d{2,3} ?G(?:i?B)?\b| ?\(\d{2,3} ?G(?:i?B)?\)|-(?:16|24|32|40|48|80|94|96|141|192)(?![\w.-]))?"
    r"(?:[- ](?:SXM\d?|PCIe|HBM\d?e?))*"  # the size as A100-40GB, A100 (40 GB) or A100-40
)
_COUNTED = lazily(rf"(?<![\w.])(\d{{1,4}}) ?(?:[x×*] ?|(?:NVIDIA )?(?=(?:A|H|V|B|L|T)\d))({_CARD})(?![\w])", re.IGNORECASE)
_AFTER = lazily(rf"(?<![\w-])({_CARD}) ?[x×*] ?(\d{{1,4}})(?![\w.])", re.IGNORECASE)
_ALONE = lazily(rf"(?<![A-Za-z0-9_/-])({_CARD})(?![A-Za-z0-9_-])")  # a letter of Chinese may stand before and behind
_BESIDE = lazily(rf"(?:^|[ ,;(])\d{{1,4}} ?[x×*] ?{_CARD}(?![\w-])|^\s*{_CARD}\s*(?:[,;]|$)", re.IGNORECASE)  # no part of a name or a path
_PROCESSES = lazily(r"--nproc[-_]per[-_]node[ =](\d{1,4})(?!\d)")
_SINGLE = lazily(r"\b(?:single|(?:only|just|on) (?:one|1))\s{1,2}(?:NVIDIA )?$", re.IGNORECASE)
_NUMBER_ALONE = lazily(r"\b(?:a|an|one|single|my|the|two|four|\d{1,2} ?x?) ([345]0[5-9]0(?: ?Ti)?)(?![\w.,]*\d)\b", re.IGNORECASE)
_GPUS = lazily(r"(?<![\w.])(\d{1,4}|two|four|eight|single|one) (?:gpus?|cards|gcds)\b", re.IGNORECASE)
_NODES = lazily(r"(?<![\w.])(\d{1,4}|two|three|four|eight) nodes?\b", re.IGNORECASE)
_WORDS = {"two": 2, "three": 3, "four": 4, "eight": 8, "single": 1, "one": 1}
_COUNTED_CHINESE = lazily(rf"(\d{{1,3}}|[两双四八]) ?(?:张|块|卡|个)的? ?((?i:{_CARD})|[345]0[5-9]0)(?![\w-])")
# cards that are only told by their memory: "4 GPUs with 12GB each", "a 24 GB card", "2x 24GB GPUs", "24G显存的单卡"; what a model needs or uses is none
_SIZED_CARD = lazily(
    r"(?<![\w.])(?:(\d{1,2}|two|three|four|eight|single|one) ?(?:[x×*] ?)?)?(?:(?<!\d)|(?<= ))(\d{1,3}) ?G(?:i?B)? "
    r"(?:(?:of )?V?RAM )?(?:GPUs?|(?:graphics |video )?cards?)\b|"
    r"(?<![\w.])(?:(\d{1,2}|two|four|eight|single|one|an?) )?(?:GPUs?|(?:graphics |video )?cards?) (?:with|of|having) (?:only )?(\d{1,3}) ?G(?:i?B)?\b|"
    r"()(?<![A-Za-z0-9.])(?<!需要)(?<!需)(?<!占用)(\d{1,3}) ?G[Bb]? ?(?:显存)? ?的?(?:单卡|显卡|GPU|gpu|卡)|"
    r"()(?:单卡|每张卡|每卡|显卡)(?:只有|显存|是|为|的|有){0,3} ?(\d{1,3}) ?G[Bb]?(?!\d)",
    re.IGNORECASE,
)
_CARDS_CHINESE = lazily(r"单(?:张|块)?(?:显)?卡()|(?<![\d.])(\d{1,2}|[两双四八]) ?(?:张|块|卡)(?!\d)(?=卡|显卡|GPU|gpu|\W|[训微跑上并]|$)")
_CHINESE_NUMBERS = {"两": 2, "双": 2, "四": 4, "八": 8}
_SENTENCE = lazily(r"(?<=[.!?;])\s+(?=[A-Z`(])|(?<=[。！？；])\s*(?=\S)")
_STAGE = lazily(r"(?<![A-Za-z])zero[-_ ]{0,2}\(?(?:stage[-_ ]{0,2})?[=: ]{0,2}([123])\b", re.IGNORECASE)
_FSDP = lazily(r"(?<![\w/.-])FSDP ?-?(2|v2)?(?![\w/]|\.\w)", re.IGNORECASE)
_METHOD = lazily(  # a letter of Chinese ends no word of Latin ones for \b
    r"(?<![A-Za-z0-9_/.-])(?:(QLoRA)|(LoRA)|full(?:[- ]parameter|[- ]model)? ?(?:fine-?\s?tun\w+|FT\b|SFT\b))(?![A-Za-z0-9_/.=-])|"
    r"全(?:参数?量?|量参?数?)(?:微调|训练|精调)",
    re.IGNORECASE,
)
_QUANTISED = lazily(r"\bload_in_([48])bit\s?=\s?True\b")
_ENGINE = lazily(r"vllm|sglang", re.IGNORECASE)
_COLOCATED = lazily(
    r"\b(?:vllm|sglang)\b[^.;]{0,60}\b(?:co-?locat\w+|same (?:gpus?|cards?)|shar(?:e|es|ing) the (?:gpu|card)s?)\b|"
    r"\bco-?locat\w+\b[^.;]{0,40}\b(?:vllm|sglang)\b",
    re.IGNORECASE,
)
_FRACTION = lazily(r"\bgpu_memory_utilization\b\W{0,4}(?:of |is )?(0?\.\d{1,3})\b")
_OBJECTIVE = lazily(r"(?<![\w/.-])(DPO|GRPO|KTO|ORPO|RLOO)(?![\w/.-])")
_RECOMPUTED = lazily(
    r"(\b(?:no|without|not using|disabled?) )?\b(?:gradient|activation) checkpointing\b(?!\W{0,3}(?:\w+ )?(?:off|false|disabled))", re.IGNORECASE
)
_WEIGHED = lazily(
    r"\bwith (?:and|or)\b|\b(?:same|identical|unchanged|both)\b|"
    r"\b(?:not|no|n't|can't|cannot|without|instead|should|would|could|tried|try|switch\w*|or|vs\.?|versus|than)\b|吗|怎么|如何",
    re.IGNORECASE,
)
_N = r"\s*(?:size|len(?:gth)?)?\s*(?:of|=|:|is|是|为|设为|设置为|设成|：)?\s*(\d{1,3}(?:,\d{3})+|\d{1,8})(k\b)?(?![\w.]*\d|\s*[/,]\s?\d)"
_SETTINGS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (field, lazily(pattern + _N, re.IGNORECASE))
    for field, pattern in (
        (
            "batch.micro_batch",
            r"(?<![A-Za-z0-9_-])(?<!ppo )(?:per[-_ ](?:device|gpu)(?:[-_ ]train)?[-_ ]|mi(?:cro|ni)[-_ ]?|"
            r"train[-_ ])?batch(?:[-_ ]?size)?(?:[-_ ]per[-_ ](?:device|gpu))?",
        ),
        (
            "batch.seq_len",
            r"(?:(?:序列|最大|上下文|文本)长度|(?<![\w-])(?:max(?:imum)?[-_ ])?(?:seq(?:uence)?(?!\d)(?:[-_ ]?len(?:gth)?)?|context(?:[-_ ]len(?:gth)?)?|"
            r"source|max_seq_length|"
            r"max_length|cutoff_len|block_size|model_max_length))",
        ),
        ("batch.gradient_accumulation", r"(?<![\w-])(?:grad(?:ient)?[-_ ]accum(?:ulation)?(?:[-_ ]steps)?|accum(?:_iter)?)"),
        ("method.rank", r"(?<![\w-])(?:lora[-_ ]?(?:r|rank))"),
    )
)
_EVALUATING = lazily(r"\b(?:test|eval|valid|infer)\w*\b(?!.*\btrain)", re.IGNORECASE)  # the batch that a sentence speaks of is that of the evaluation
_OF_ALL = lazily(r"\b(?:global|total|effective|overall)[-_ ]$", re.IGNORECASE)  # the batch of all ranks and accumulation steps
_SETTING_WORDS = ("batch", "seq", "context", "source", "max", "cutoff", "block", "accum", "lora", "长度")
# "median 310, max 3980 tokens", "lengths: p50=410 p95=2.1k max=8k": two such figures on a line that speaks of tokens or lengths
_SPREAD = lazily(
    r"(?<![\w-])(median|p50|p95|p99|max(?:imum)?|longest)(?:\s{0,2}(?:length|len|sample|sequence|prompt|tokens?|is|of|was|about|=|:|~)){0,3}\s{0,3}"
    r"(\d{1,3}(?:,\d{3})+|\d{1,7}(?:\.\d{1,2})?)( ?k\b)?",
    re.IGNORECASE,
)
_OF_TOKENS = lazily(r"\b(?:tokens?|lengths?|len|seq\w*)\b", re.IGNORECASE)
_QUANTILES = {"median": "p50", "p50": "p50", "p95": "p95", "p99": "p99"}
_DIGIT = lazily(r"\d")
_ID = lazily(r"(?<![\w./:-])([A-Za-z0-9][\w.-]{1,60}/[A-Za-z0-9][\w.-]{1,90})(?![\w/])")
_BARE = lazily(r"(?<![\w./-])([A-Za-z][A-Za-z]{1,20}[-_]?\d{0,3}(?:[.-][\w.]{1,20}){1,8}|gpt2(?:-\w+)?|t5-(?:small|base|large|3b|11b))(?![\w/])")
_ORDINARY = lazily(r"^(?:[a-z]+-[a-z]+|[\w.-]+\.(?:py|sh|txt|json|ya?ml|log|toml|md|cu|cpp))$", re.IGNORECASE)


def remarks_of(lines: Iterator[tuple[str, str]]) -> Iterator[Ranked]:
    """Facts of remarks; ``lines``: (where, text) of comments, questions and log lines.

    A strategy, a method, a switch is taken only where all of them name one: people compare them as often as they use them.
    """
    claims: dict[str, dict[str, tuple[str, str]]] = {}
    for where, text in lines:
        if not 2 <= len(text) <= 2000:
            continue
        for field, value in _found(text):
            yield Ranked(Fact(field, value, "read", where, why="a remark", text=text.strip()[:200]), PROSE)
        for field, value in _claims(text):
            claims.setdefault(field, {}).setdefault(value, (where, text.strip()[:200]))
    for field, values in claims.items():
        if len(values) == 1:
            value, (where, text) = next(iter(values.items()))
            for name, stated in (("method.kind", "lora"), ("method.base", "nf4")) if value == "qlora" else ((field, value),):
                yield Ranked(Fact(name, stated, "read", where, why="a remark", text=text), PROSE)


def beside(lines: Iterator[tuple[str, str]]) -> Iterator[Ranked]:
    """The cards that a line of settings names in passing (``model = Qwen/Qwen2.5-1.5B, 1x L40S 48GB``); nothing else of such a line is a remark."""
    for where, text in lines:
        if len(text) <= 200 and not {'"', "'"} & set(text) and _BESIDE.search(text) is not None:
            for field, value in _hardware(text):
                yield Ranked(Fact(field, value, "read", where, why="a remark", text=text.strip()[:200]), PROSE)


def _claims(text: str) -> Iterator[tuple[str, str]]:
    """What a line says of strategy, method and checkpointing; of one that is weighed rather than stated also ``weighed``."""
    for sentence in _SENTENCE.split(text):
        found = [("parallel.strategy", f"zero{m[1]}") for m in _STAGE.finditer(sentence)]
        found += [("parallel.strategy", f"fsdp{'2' if m[1] else '1'}") for m in _FSDP.finditer(sentence)]
        found += [("method.kind", "qlora" if m[1] else "lora" if m[2] else "full") for m in _METHOD.finditer(sentence)]
        found += [("method.base", "int8" if m[1] == "8" else "nf4") for m in _QUANTISED.finditer(sentence)]
        if (engine := _COLOCATED.search(sentence)) is not None and (named := _ENGINE.search(engine[0])) is not None:
            found += [("rollout.engine", named[0].lower()), ("rollout.placement", "colocated")]
        found += [("objective", m[1].lower()) for m in _OBJECTIVE.finditer(sentence)]
        found += [("activations.checkpointing", "none" if m[1] else "full") for m in _RECOMPUTED.finditer(sentence)]
        yield from found
        if found and _WEIGHED.search(_RECOMPUTED.sub(" ", sentence)):
            yield from ((field, "weighed") for field, _ in found)


def _found(text: str) -> Iterator[tuple[str, object]]:
    yield from _hardware(text)
    lowered = text.lower()
    for field, pattern in _SETTINGS if _DIGIT.search(text) and any(word in lowered for word in _SETTING_WORDS) else ():
        if (m := next((m for m in list(pattern.finditer(text))[:6] if not _OF_ALL.search(text[: m.start()])), None)) is not None:
            value = int(m[1].replace(",", "")) * (1024 if m[2] else 1)
            if field == "batch.micro_batch" and _EVALUATING.search(text[: m.start()]):
                field = "eval.micro_batch"
            if 1 <= value <= 1 << 24:
                yield field, value
    if "utilization" in lowered and _COLOCATED.search(text) and (m := _FRACTION.search(text)) is not None:
        yield "rollout.memory_fraction", float(m[1])
    yield from _lengths(text, lowered)
    yield from degrees.layout(text)
    if (name := model_in(text)) is not None:
        yield "model.name", name


def _lengths(text: str, lowered: str) -> Iterator[tuple[str, object]]:
    if not any(word in lowered for word in ("median", "p50", "p95", "p99", "longest")) or not _OF_TOKENS.search(text):
        return
    found: dict[str, int] = {}
    for m in list(_SPREAD.finditer(text))[:8]:
        value = round(float(m[2].replace(",", "")) * (1000 if m[3] else 1))
        if 1 <= value <= 1 << 24:
            found.setdefault(_QUANTILES.get(m[1].lower(), "max"), value)
    if len(found) >= 2:
        for name, value in found.items():
            yield f"batch.lengths.{name}", value


def _hardware(text: str) -> Iterator[tuple[str, object]]:
    count: int | None = None
    name: str | None = None
    if (m := _COUNTED.search(text)) is not None:
        count, name = int(m[1]), m[2]
    elif (m := _AFTER.search(text)) is not None:
        name, count = m[1], int(m[2])
    elif (m := _ALONE.search(text)) is not None:
        name = m[1]
        count = 1 if _SINGLE.search(text[: m.start()]) else None
    elif (m := _NUMBER_ALONE.search(text)) is not None:
        name = f"RTX {m[1]}"
    if count is None and (m := _COUNTED_CHINESE.search(text)) is not None:
        count, name = _CHINESE_NUMBERS.get(m[1]) or int(m[1]), f"RTX {m[2]}" if m[2].isdigit() else m[2].upper()
    sized = _SIZED_CARD.search(text) if name is None else None
    if sized is not None:
        groups = [g for g in sized.groups() if g is not None]
        told, size = (groups[0] if len(groups) > 1 else ""), int(groups[-1])
        count = count or _WORDS.get(told.lower()) or (int(told) if told.isdigit() else None)
        if 4 <= size <= 288:
            yield "hardware.gpu", {"name": f"a card of {size} GB", "memory_gib": float(size)}
    if count is None and (p := _PROCESSES.search(text)) is not None:
        count = int(p[1])
    if count is None and (c := _CARDS_CHINESE.search(text)) is not None:
        count = 1 if c[2] is None else _CHINESE_NUMBERS.get(c[2]) or int(c[2])
    if (both := degrees.nodes(text)) is not None:
        yield "hardware.nodes", both[0]
        count = both[1]
    if count is None and name is None:
        if (g := _GPUS.search(text)) is not None:
            count = _WORDS.get(g[1].lower()) or int(g[1])
        else:
            return
    nodes = _NODES.search(text) if both is None else None
    if nodes is not None:
        told_nodes = _WORDS.get(nodes[1].lower()) or int(nodes[1])
        yield "hardware.nodes", told_nodes
        count = degrees.of_each(count, told_nodes) if count is not None else None
    if count is not None and 1 <= count <= 4096:
        yield "hardware.gpus_per_node", count
    if name is not None and (card := _card(name.strip())) is not None:
        yield "hardware.gpu", card


@lru_cache(maxsize=256)
def _card(name: str) -> str | dict[str, object] | None:
    found = cards.find(re.sub(r" ?(?:(?<=[ -])(\d{2,3}) ?G|-(\d{2,3}))$", r"-\1\2GB", name))
    if found is not None:
        return found.id
    size = re.search(r"(\d{2,3}) ?G(?:i?B)?\b", name)
    return {"name": name[:80], "memory_gib": float(size[1])} if size else None


@lru_cache(maxsize=512)
def model_in(text: str) -> str | None:
    """The first name in a text that a known model bears; a hub id before a bare name."""
    for pattern in (_ID, _BARE):
        for m in list(pattern.finditer(text))[:20]:
            name = m[1].rstrip(".,")
            if _ORDINARY.match(name) and "/" not in name and name.lower() not in presets.index() and name.lower() not in _tails():
                continue
            if (preset := presets.find(name)) is not None:
                return name if "/" in name else preset.hub_id
    return None


@lru_cache(maxsize=1)
def _tails() -> frozenset[str]:
    return frozenset(name.rpartition("/")[2] for name in presets.index())


def comments(name: str, text: str) -> Iterator[tuple[str, str]]:
    """``(where, comment)`` of scripts and configs: what stands behind ``#``."""
    for number, line in enumerate(text.split("\n")[:20_000], 1):
        start = line.find("#")
        if start >= 0 and line[start : start + 2] != "#!" and (start == 0 or line[start - 1].isspace()):
            yield f"{name}:{number}", line[start:].lstrip("# ").strip()
