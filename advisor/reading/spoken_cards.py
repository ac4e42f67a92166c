"""Cards and their number as people write them: "8 x A100-SXM4-40GB", "2x4090", "on a 24GB 3090", "4 GPUs with 12GB each", "单张4090"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from advisor import cards
from advisor.reading import degrees
from advisor.reading.pattern import pattern as lazily

_CARD = (
    r"(?:NVIDIA |AMD |Tesla |GeForce |Quadro |Instinct )*(?:"
    r"(?:A100|H100|H200|H800|A800|H20|GH200|GB200|GB300|GB10|B100|B200|B300|V100|P100|P40|K80|M40|M60|T4|L4|L20|L40S?|A10G?|A16|A30|A40|A2|"
    r"MI\d{3}[XA]?|(?:TITAN|Titan) (?:RTX|V|Xp?)|DGX Spark|Gaudi ?[23])"
    r"|RTX ?(?:PRO )?A?\d{4}(?: ?Ti)?(?: ?(?:SUPER|Super))?(?: Ada(?: Generation)?| Blackwell)?|A[456]000(?: Ada)?|GTX ?\d{3,4}(?: ?Ti)?|"
    r"[345]0[5-9]0(?: ?Ti)?(?= (?:GPU|card|24|laptop))|(?:20[78]0|10[78]0) ?Ti|(?:RX ?)?7900 ?XTX?|TPU ?v\d\S{0,6}|"
    r"(?:Apple )?M[1-5](?: (?:Pro|Max|Ultra))|(?:Ascend )?910B\d?"
    r")(?:[- ](?:SXM\d?|PCI[eE]|PCI-E|NVL|HBM\d?e?))*(?:[- ]?\d{2,3} ?G(?:i?B)?\b| ?\(\d{2,3} ?G(?:i?B)?\)|-(?:16|24|32|40|48|80|94|96|141|192)(?![\w.-]))?"
    r"(?:[- ](?:SXM\d?|PCIe|HBM\d?e?))*"  # the size as A100-40GB, A100 (40 GB) or A100-40
)
_COUNTED = lazily(
    rf"(?<![\w.])(\d{{1,4}}|two|three|four|six|eight) ?(?:[x×*] ?|(?:NVIDIA )?(?=(?:[AHVBLT]\d|RTX|GTX)))({_CARD})(?:s(?!\w))?(?![\w])", re.IGNORECASE
)
_AFTER = lazily(rf"(?<![\w-])({_CARD}) ?[x×*] ?(\d{{1,4}})(?![\w.])", re.IGNORECASE)
_ALONE = lazily(rf"(?<![A-Za-z0-9_/-])({_CARD})(?![A-Za-z0-9_-])")  # a letter of Chinese may stand before and behind
BESIDE = lazily(rf"(?:^|[ ,;(])\d{{1,4}} ?[x×*] ?{_CARD}(?![\w-])|^\s*{_CARD}\s*(?:[,;]|$)", re.IGNORECASE)  # no part of a name or a path
_PROCESSES = lazily(r"--nproc[-_]per[-_]node[ =](\d{1,4})(?!\d)")
_SINGLE = lazily(r"\b(?:single|(?:only|just|on) (?:one|1))\s{1,2}(?:NVIDIA )?$", re.IGNORECASE)
# as people type them; what is a word elsewhere too (t4, a10, m1) needs an article before it or a card's word behind it
_TYPED = lazily(
    r"(?<![A-Za-z0-9_./-])(?:((?:a100|h100|h200|h800|a800|h20|gh200|gb200|b200|b300|v100|p100|l40s|a6000|a5000|mi\d{3}x?)(?:[- ]?\d{2,3} ?gi?b?)?|"
    r"rtx ?(?:pro )?a?\d{4}(?: ?ti)?(?: ?super)?(?: ?ada(?: generation)?)?|gtx ?\d{3,4}(?: ?ti)?|(?:20[78]0|10[78]0) ?ti|7900 ?xtx?|titan (?:rtx|xp))s?|"
    r"(?:(?:a|an|one|single|my|our|on|colab) )(t4|l4|a10g?|a16|a30|a40|p40|l40)(?![- ]?\d)|(t4|l4|a10g?|a30|a40|p40|l40) (?:gpus?|cards?))"
    r"(?![A-Za-z0-9_-]|\.\w)",
    re.IGNORECASE,
)
_NUMBER_ALONE = lazily(r"\b(?:a|an|one|single|my|the|two|four|\d{1,2} ?x?) ([345]0[5-9]0(?: ?Ti)?)(?![\w.,]*\d)\b", re.IGNORECASE)
# a number that is a card by what stands beside it: its memory, its count, or "on" before and an end behind
_NUMBER_BESIDE = lazily(
    r"(?<![\w.])(?:24|32|16|12|11|10|8) ?gi?b? ([345]0[5-9]0(?: ?ti)?)s?(?![\w.]*\d)|(?<![\w.])([345]0[5-9]0(?: ?ti)?)s? (?=\(?(?:24|32|16|12|11|10|8) ?gi?b)|"
    r"(?:单卡|单张|一张|一块|用|在) ?([345]0[5-9]0(?: ?ti)?)(?!\d|[\w.]*\d{2})|"
    r"\bon (?:my |the |our )?([345]0[5-9]0(?: ?ti)?)s?(?=\s*(?:$|[.,;:!?)]|(?:with|and|gpus?|using|for|but)\b))",
    re.IGNORECASE,
)
_NUMBER_COUNTED = lazily(
    r"(?<![\w.])(\d{1,2}|two|three|four|six|eight) ?(?:[x×*] ?([345]0[5-9]0(?: ?ti)?)s?|([345]0[5-9]0(?: ?ti)?)s)(?![\w.]*\d|\w)", re.IGNORECASE
)
_SIZE_BEFORE = lazily(r"(?<![\w.])(\d{2,3}) ?G(?:i?B)?[ -](?:NVIDIA )?$", re.IGNORECASE)
_HAS_SIZE = lazily(r"\d{2,3} ?G(?:i?B)?\b|-\d{2,3}$", re.IGNORECASE)
# "I don't have an A100, only a 3090"; "switched from a 3090 to ..."; "my friend's 4090"
OF_OTHERS = lazily(
    r"\b(?:don't|do not|doesn't|haven't|have no|without|instead of|rather than|(?:switched|moved|upgraded|migrated|changed) from|"
    r"friends?(?:'s)?|colleagues?(?:'s)?)\b(?:(?!\bto\b)[^.;,!?]){0,30}$",
    re.IGNORECASE,
)
_GPUS = lazily(r"(?<![\w.])(\d{1,4}|two|four|eight|single|one) (?:gpus?|cards|gcds)\b", re.IGNORECASE)
_NODES = lazily(r"(?<![\w.])(\d{1,4}|two|three|four|eight) nodes?\b", re.IGNORECASE)
_WORDS = {"two": 2, "three": 3, "four": 4, "six": 6, "eight": 8, "single": 1, "one": 1}
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


def _own(named: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The first card that is not told of as somebody else's, or as what is not there."""
    return next((m for m in list(named.finditer(text))[:8] if not OF_OTHERS.search(text[: m.start()])), None)


def cards_in(text: str) -> Iterator[tuple[str, object]]:
    """``(field, value)`` of cards, cards a node and nodes that a text names."""
    count: int | None = None
    name: str | None = None
    if (m := _own(_COUNTED, text)) is not None:
        count, name = _WORDS.get(m[1].lower()) or int(m[1]), m[2]
    elif (m := _AFTER.search(text)) is not None:
        name, count = m[1], int(m[2])
    elif (m := _own(_ALONE, text)) is not None:
        before = _SIZE_BEFORE.search(text[: m.start()])  # "a 40GB A100", "80 GB H100"
        name = f"{m[1]} {before[1]}GB" if before is not None and _HAS_SIZE.search(m[1]) is None else m[1]
        count = 1 if _SINGLE.search(text[: m.start()]) else None
    elif (m := _NUMBER_COUNTED.search(text)) is not None:
        count, name = _WORDS.get(m[1].lower()) or int(m[1]), f"RTX {m[2] or m[3]}"
    elif (m := _NUMBER_ALONE.search(text)) is not None:
        name = f"RTX {m[1]}"
    elif (m := _own(_TYPED, text) or _NUMBER_BESIDE.search(text)) is not None:
        said = next(g for g in m.groups() if g)
        name = f"RTX {said}" if said[0] in "345" else said
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
