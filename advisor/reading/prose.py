"""What people write beside the files: "8 x A100-SXM4-40GB", "batch 16, source 512", "Llama-3.1-8B on an RTX 4090?", comments in scripts.

Such a remark fills what nothing else says; a config that says otherwise wins, and the difference is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from msgspec.structs import replace

from advisor import cards
from advisor.architecture import presets
from advisor.evidence import Fact
from advisor.reading import degrees
from advisor.reading.merge import PROSE, Ranked
from advisor.reading.pattern import pattern as lazily
from advisor.reading.spoken_cards import BESIDE, cards_in
from advisor.reading.spoken_models import model_spoken_of
from advisor.reading.switched_off import is_code

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
_OPTIMIZERS = tuple(
    (name, lazily(text, re.IGNORECASE))
    for name, text in (
        ("paged-adamw-8bit", r"\bpaged[-_ ]adamw?[-_ ]8[-_ ]?bit\b|\b8[- ]?bit paged adamw?\b"),
        ("adamw-8bit", r"(?<!paged[-_ ])\badamw?[-_ ]?(?:bnb[-_ ])?8[-_ ]?bit\b|\b8[- ]?bit[- ]adamw?\b"),
        ("adafactor", r"\badafactor\b"),
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
_WEIGHED = lazily(
    r"\bwith (?:and|or)\b|\b(?:same|identical|unchanged|both)\b|"
    r"\b(?:not|no|n't|can't|cannot|without|instead|should(?! (?:i|we|it|this)\b)|would(?! (?:it|this|that)\b)|could(?! (?:i|we)\b)|"
    r"tried|try|switch\w*|or|vs\.?|versus|"
    r"(?<!larger )(?<!bigger )(?<!more )(?<!smaller )(?<!less )(?<!longer )than)\b|吗|怎么|如何",
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
        ("batch.micro_batch", r"(?<![A-Za-z0-9_.-])(?<!\d )(?:bsz?|mbs)(?=\W)"),  # "bs 1", "mbs=2"
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
_SETTING_WORDS = ("batch", "bs", "seq", "context", "source", "max", "cutoff", "block", "accum", "lora", "长度")
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
            fact = Fact(field, value, "read", where, why="a remark", text=text.strip()[:200])
            if others := _other_sizes(field, value, text):
                fact = replace(fact, kind="inferred", why=f"a remark that does not say its memory: it is made with {others} GB too")
            yield Ranked(fact, PROSE)
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
        if len(text) <= 200 and not {'"', "'"} & set(text) and BESIDE.search(text) is not None:
            for field, value in cards_in(text):
                yield Ranked(Fact(field, value, "read", where, why="a remark", text=text.strip()[:200]), PROSE)


_GB = lazily(r"\d ?G(?:i?B)?\b|-(?:16|24|32|40|48|80|94|96)\b", re.IGNORECASE)


def _other_sizes(field: str, value: object, text: str) -> str:
    """In words, what else a card that a text names without its memory is made with."""
    if field != "hardware.gpu" or not isinstance(value, str) or _GB.search(text) is not None:
        return ""
    return " or ".join(str(size) for size in cards.other_sizes(value))


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
        found += [("optimizer.name", name) for name, named in _OPTIMIZERS if named.search(sentence)][:1]
        found += [("offload.optimizer", "cpu")] if _OFFLOADS.search(sentence) else []
        found += [("activations.checkpointing", "none" if m[1] else "full") for m in _RECOMPUTED.finditer(sentence)]
        yield from found
        if found and _WEIGHED.search(_RECOMPUTED.sub(" ", sentence)):
            yield from ((field, "weighed") for field, _ in found)


def _found(text: str) -> Iterator[tuple[str, object]]:
    yield from cards_in(text)
    lowered = text.lower()
    for field, pattern in _SETTINGS if _DIGIT.search(text) and any(word in lowered for word in _SETTING_WORDS) else ():
        found = [m for m in list(pattern.finditer(text))[:6] if not _OF_ALL.search(text[: m.start()])]
        if (m := next((m for m in found if not _worked(text, m)), found[0] if found else None)) is not None:
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


_WORKS = lazily(r"\b(?:works?|worked|working|fine|succeeds?|trains? ok)\b", re.IGNORECASE)
_CLAUSE = lazily(r"[,;.!?\n](?!\d)|\bbut\b|\band\b")


def _worked(text: str, found: re.Match[str]) -> bool:
    """Whether the clause says that the run with this value went well: of two tries it is not the one that failed."""
    begins = max((m.end() for m in _CLAUSE.finditer(text, 0, found.start())), default=0)
    ends = m.start() if (m := _CLAUSE.search(text, found.end())) is not None else len(text)
    return _WORKS.search(text[begins:ends]) is not None


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


@lru_cache(maxsize=512)
def model_in(text: str) -> str | None:
    """The first name in a text that a known model bears; a hub id before a name in words, and that before a bare name."""
    for pattern in (_ID, _BARE):
        if pattern is _BARE and (spoken := model_spoken_of(text)) is not None:
            return spoken
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
            said = line[start:].lstrip("# ").strip()
            if not is_code(said):
                yield f"{name}:{number}", said
