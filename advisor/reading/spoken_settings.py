"""Numbers of a run as people write them: "batch 16, source 512", "bs=2, 4k context", "lengths: p50=410 max=8k"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.reading.pattern import pattern as lazily

_N = (
    r"\s*(?:size|len(?:gth)?)?\s*(?:of|=|:|is|是|为|设为|设置为|设成|：)?\s*(\d{1,3}(?:,\d{3})+|\d{1,8})(k\b)?"
    r"(?![\w.]*\d|\s*[/,]\s?\d(?!\d{0,6} ?k? ?(?:tok|context|seq)))"  # "batch 2, 4, 8" is a row of tries, "batch 2, 2048 tokens" is none
)
_SETTINGS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (field, lazily(pattern + _N, re.IGNORECASE))
    for field, pattern in (
        (
            "batch.micro_batch",
            r"(?<![A-Za-z0-9_-])(?<!ppo )(?:per[-_ ](?:device|gpu)(?:[-_ ]train)?[-_ ]|mi(?:cro|ni)[-_ ]?|"
            r"train[-_ ])?batch(?:[-_ ]?size)?(?:[-_ ]per[-_ ](?:device|gpu))?",
        ),
        # no key of YAML, which is read as one where it is not commented out
        (
            "eval.micro_batch",
            r"(?<![A-Za-z0-9_-])(?!\w{1,40}_size:\s)(?:per[-_ ](?:device|gpu)[-_ ])?(?:eval(?:uation)?|valid(?:ation)?)[-_ ]batch(?:[-_ ]?size)?",
        ),
        ("batch.micro_batch", r"(?<![A-Za-z0-9_.-])(?<!\d )(?:bsz?|mbs)(?=\W)"),  # "bs 1", "mbs=2"
        (
            "batch.seq_len",
            r"(?:(?:序列|最大|上下文|文本)?(?<!生成)(?<!输出)(?<!回复)长度|"
            r"(?<![\w-])(?<!prompt )(?<!completion )(?<!response )(?<!output )(?<!generation )(?<!answer )length(?! of \d+ (?:samples|rows))|"
            r"(?<![\w-])(?:max(?:imum)?[-_ ])?(?:seq(?:uence)?(?!\d)s?(?:[-_ ]?len(?:gth)?)?|"
            r"(?:context|ctx)(?:[-_ ]?(?:len(?:gth)?|window|size))?|source|max_seq_length|"
            r"max(?:imum)?[-_ ]?len(?:gth)?|cutoff_len|block_size|model_max_length))",
        ),
        ("batch.gradient_accumulation", r"(?<![\w-])(?:grad(?:ient)?[-_ ]accum(?:ulation)?(?:[-_ ]steps)?|accum(?:_iter)?)"),
        ("method.rank", r"(?<![\w-])(?:lora[-_ ]?(?:r|rank))"),
    )
)
_EVALUATING = lazily(r"\b(?:test|eval|valid|infer)\w*\b(?!.*\btrain)", re.IGNORECASE)  # the batch that a sentence speaks of is that of the evaluation
_OF_ALL = lazily(r"\b(?:global|total|effective|overall)[-_ ]$", re.IGNORECASE)  # the batch of all ranks and accumulation steps
_SETTING_WORDS = ("batch", "bs", "seq", "context", "ctx", "source", "max", "cutoff", "block", "accum", "lora", "token", "length", "长度")
# "median 310, max 3980 tokens", "lengths: p50=410 p95=2.1k max=8k": two such figures on a line that speaks of tokens or lengths
_SPREAD = lazily(
    r"(?<![\w-])(median|p50|p95|p99|max(?:imum)?|longest)(?:\s{0,2}(?:length|len|sample|sequence|prompt|tokens?|is|of|was|about|=|:|~)){0,3}\s{0,3}"
    r"(\d{1,3}(?:,\d{3})+|\d{1,7}(?:\.\d{1,2})?)( ?k\b)?",
    re.IGNORECASE,
)
_OF_TOKENS = lazily(r"\b(?:tokens?|lengths?|len|seq\w*)\b", re.IGNORECASE)
_QUANTILES = {"median": "p50", "p50": "p50", "p95": "p95", "p99": "p99"}
_DIGIT = lazily(r"\d")
# the number before its word: "4k context", "2048-token sequences", "8k ctx", "4096 sequence length"
_LENGTH_BEFORE = lazily(
    r"(?<![\w.,/-])(\d{1,3}(?:,\d{3})+|\d{1,7})( ?k)?[- ](?:tokens?[- ])?(?:(?:of )?(?:max(?:imum)? )?(?:context|ctx|seq(?:uence)?[- ]?len(?:gth)?)\b|"
    r"(?:max(?:imum)? )?seq(?:uence)?\b(?! per| ?/|[ -](?:parallel|classif))|(?<=tokens )seq(?:uence)?s\b|(?<=token[ -])seq(?:uence)?s\b|"
    r"(?<=[ -])tokens? (?:long|each|max(?:imum)?|per (?:sample|sequence|example|row|prompt)|samples?|sequences?|inputs?|examples?|documents?)\b)",
    re.IGNORECASE,
)
# "batch 2, 2048 tokens": a length where the batch stands right before it, and neither a rate nor a sum follows
_LENGTH_IN_A_LIST = lazily(
    r"(?:batch(?:[-_ ]?size)?|bsz?|mbs)\s?[=:]?\s?\d{1,5}\s?(?:,|and|x|×|at|with|@)\s?(\d{1,3}(?:,\d{3})+|\d{2,7})( ?k)? ?tokens\b"
    r"(?!\s?(?:/|per|a |in|total|an?))",
    re.IGNORECASE,
)
# "supports 128k context" is what the model could, "average 300 tokens per sample" no limit, "generated 512 tokens per prompt" an answer
_OF_ANOTHER = lazily(
    r"\b(?:(?:supports?|handles?|allows|native|advertised|generat(?:es?|ed|ing))(?: (?:a|an|up to|of|about))*|"
    r"(?:average|avg|mean|median|shortest|min(?:imum)?)(?: (?:is|of|about|length))*\W{0,2})\s?$",
    re.IGNORECASE,
)
_UNIT_OF_ANOTHER = lazily(r"\s?(?:s|ms|sec\w*|min\w*|hours?|char\w*|words?|bytes?|frames?|samples?|%)(?![A-Za-z])", re.IGNORECASE)
_BINARY = frozenset(1 << power for power in range(12))  # "4k" of tokens is 4,096, "10k" is 10,000


def settings_in(text: str) -> Iterator[tuple[str, object]]:
    """``(field, value)`` of the numbers that a text gives to batch, length, rank and accumulation; lengths in tokens."""
    lowered = text.lower()
    if not _DIGIT.search(text) or not any(word in lowered for word in _SETTING_WORDS):
        return
    stated = set()
    for field, pattern in _SETTINGS:
        found = [m for m in list(pattern.finditer(text))[:6] if not _OF_ALL.search(text[: m.start()]) and not _counts(text, m)]
        if field == "batch.seq_len":
            found = [m for m in found if not _UNIT_OF_ANOTHER.match(text, m.end())]
        if (m := next((m for m in found if not _worked(text, m)), found[0] if found else None)) is not None:
            value = _number(m[1], m[2])
            if field == "batch.micro_batch" and _EVALUATING.search(text[: m.start()]):
                field = "eval.micro_batch"
            if 1 <= value <= 1 << 24:
                stated.add(field)
                yield field, value
    if "batch.seq_len" not in stated:
        named = [m for pattern in (_LENGTH_BEFORE, _LENGTH_IN_A_LIST) for m in list(pattern.finditer(text))[:6] if not _OF_ANOTHER.search(text[: m.start()])]
        if (m := next((m for m in named if not _worked(text, m)), named[0] if named else None)) is not None and 16 <= _number(m[1], m[2]) <= 1 << 24:
            yield "batch.seq_len", _number(m[1], m[2])


_COUNT = lazily(r"^\s*(?:train\w*[ _-]|eval\w*[ _-]|valid\w*[ _-]|micro[ _-]?|mini[ _-]?)?batch\s+\d+$", re.IGNORECASE)
_BEHIND_A_COUNT = lazily(r"\s*(?::|\]|of \d|\W{0,3}(?:loss|done)\b)", re.IGNORECASE)


def _counts(text: str, found: re.Match[str]) -> bool:
    """Whether ``batch 258:``, ``[batch 258]``, ``batch 258 of 400``, ``batch 258, loss 0.3`` is the number of a batch, not its size."""
    return _COUNT.match(found[0]) is not None and _BEHIND_A_COUNT.match(text, found.end()) is not None


def _number(digits: str, thousands: str | None) -> int:
    value = int(digits.replace(",", ""))
    return value * (1 if not thousands else 1024 if value in _BINARY else 1000)


_WORKS = lazily(r"\b(?:works?|worked|working|fine|succeeds?|trains? ok)\b", re.IGNORECASE)
_CLAUSE = lazily(r"[,;.!?\n](?!\d)|\bbut\b|\band\b")


def _worked(text: str, found: re.Match[str]) -> bool:
    """Whether the clause says that the run with this value went well: of two tries it is not the one that failed."""
    begins = max((m.end() for m in _CLAUSE.finditer(text, 0, found.start())), default=0)
    ends = m.start() if (m := _CLAUSE.search(text, found.end())) is not None else len(text)
    return _WORKS.search(text[begins:ends]) is not None


def lengths_in(text: str) -> Iterator[tuple[str, object]]:
    """``(field, tokens)`` of a spread of lengths: two quantiles at least."""
    lowered = text.lower()
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
