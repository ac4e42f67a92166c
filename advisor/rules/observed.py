"""What a reporter saw and says in words: memory grows, a switch changes nothing, the first card fills. Weaker than a log, and often all there is.

An observation is put in many words, so each expression takes the usual verbs and nouns in either order. A question or a condition is none.
"""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.run import Run

_MEMORY = r"(?:memory|VRAM|RAM|footprint|(?:GPU|CUDA) mem)"
_UP = r"(?:increas\w+|grow\w*|ris(?:es|ing|e)|climb\w*|accumulat\w+|build\w* up|creep\w*|go(?:es|ing)? up|leak\w*)"
_TIME = r"(?:batch|step|iteration|epoch|evaluation|validation|call|loop)\w*"
_EACH = rf"(?:(?:each|every|per|successive|more) (?:\w+ ){{0,2}}{_TIME}|step by step|over time|steadily|gradually|slowly|continu\w+)"
_EVALUATION = pattern(r"\b(?:validat|evaluat|eval\b|test(?:ing)?\b|inference|predict)", re.IGNORECASE)
_GROWS = pattern(
    rf"\b{_MEMORY}\b[^.?!;]{{0,80}}\b{_UP}\b[^.?!;]{{0,80}}\b{_EACH}\b|"
    rf"\b{_EACH}\b[^.?!;]{{0,60}}\b{_MEMORY}\b[^.?!;]{{0,60}}\b{_UP}\b|"
    rf"\b{_MEMORY}\b[^.?!;]{{0,40}}\b{_EACH}\b[^.?!;]{{0,10}}\b{_UP}\b|"
    r"显存[^。？！?]{0,14}(?:一直|不断|持续|逐渐|逐步|越来越|慢慢)[^。？！?]{0,8}(?:增|涨|大|高|上升|多)|每[^。？！?，]{0,8}(?:步|轮|迭代|epoch|batch)[^。？！?]{0,14}显存[^。？！?]{0,10}(?:增|涨)",
    re.IGNORECASE,
)
_CARD = r"(?:GPUs?|cards?|ranks?|devices?|process(?:es)?|workers?)"
_ALL_OF = r"(?:whole|full|entire|complete|base)"
_MODEL = r"(?:model|weights|checkpoint|parameters)"
_HAVE = r"(?:load\w*|hold\w*|keep\w*|has|have|stores?|cop(?:y|ies)|fill(?:s|ed)? (?:up )?with)"
_ON_EACH = pattern(
    rf"(?<!not )\b(?:each|every|all|both)\b[^.?!]{{0,20}}\b{_CARD}\b[^.?!]{{0,30}}\b{_HAVE}\b[^.?!]{{0,20}}\b{_ALL_OF}\b[^.?!]{{0,15}}\b{_MODEL}\b|"
    rf"\b(?:load\w*|cop(?:y|ies|ied)|replicat\w*|puts?|place\w*)\b[^.?!]{{0,20}}\b{_ALL_OF}\b[^.?!]{{0,15}}\b{_MODEL}\b[^.?!]{{0,20}}\b(?:on|to|onto|in|into)\b"
    rf"[^.?!]{{0,6}}\b(?:each|every|all|both)\b[^.?!]{{0,20}}\b{_CARD}\b|"
    rf"\b(?:memory|VRAM|usage) (?:of|on) (?:each|every|all)\b[^.?!]{{0,12}}\b{_CARD}\b[^.?!]{{0,20}}\b(?:up to|reach\w*|equals?|is)\b"
    rf"[^.?!]{{0,16}}\b{_ALL_OF} {_MODEL}\b|"
    r"\b(?:model|weights|parameters) (?:is|are|was|were|gets?) (?:replicated|copied|loaded (?:in full|entirely|fully|completely)) "
    r"(?:on|onto|to|in|into) (?:each|every|all)\b|"
    r"(?<!not )\b(?:fully|entirely|completely) (?:load\w*|replicat\w*|cop(?:y|ied)|materiali[sz]ed) "
    rf"(?:on|onto|to|in|into) (?:each|every|all)\b[^.?!]{{0,20}}\b{_CARD}\b|"
    r"每(?:一)?(?:张|块|个)?(?:卡|显卡|GPU|进程|rank)[^，。？?]{0,8}(?:加载|载入|保存|存放|占用|放)[^，。？?]{0,8}(?:模型|权重|参数)",
    re.IGNORECASE,
)
_NARROW = r"(?:fp8|float8|mxfp8)"
_FP8_SAVES_NOTHING = pattern(
    rf"\b{_NARROW} (?:is |be |also )?(?:using|uses?|taking|takes?|needs?|needing) (?:\w+ )?more\b|"
    rf"\b{_NARROW}\b[^.?!]{{0,120}}\b(?:same|similar|identical|more|higher|larger|increase\w*) (?:\w+ ){{0,3}}(?:memory|VRAM|footprint|usage)\b|"
    rf"\b{_NARROW}\b[^.?!]{{0,100}}\b(?:memory|VRAM|usage|footprint)\b[^.?!]{{0,40}}\b(?:same|higher|larger|more|"
    rf"not (?:\w+ )?(?:reduced?|lower|decrease\w*)|increase\w*|unchanged)\b|"
    rf"\b(?:memory|VRAM|footprint)\b[^.?!]{{0,40}}\b{_NARROW}\b[^.?!]{{0,30}}\b(?:same|similar|identical|higher|larger|more)\b|"
    rf"(?:\b(?:no|without|not)|n't)\b[^.?!]{{0,40}}\b(?:memory|VRAM)\b[^.?!]{{0,20}}\b(?:sav\w+|reduc\w+|benefit|gain|decrease)\b[^.?!]{{0,60}}\b{_NARROW}\b|"
    rf"\b{_NARROW}\b[^.?!]{{0,60}}(?:\b(?:no|not)|n't)\b[^.?!]{{0,30}}\b(?:sav\w*|reduc\w+|decreas\w+|lower)\b[^.?!]{{0,30}}\b(?:memory|VRAM)\b|"
    rf"{_NARROW}[^。？?]{{0,30}}显存[^。？?]{{0,16}}(?:没有?|并未|不|一样|相同|反而)",
    re.IGNORECASE,
)
_GRAPHS = r"cuda ?graphs?"
_GRAPHS_COST = pattern(
    rf"\b(?:without|no|disabl\w+|not using|turn\w* off)\b[^.?!]{{0,12}}\b{_GRAPHS}\b[^.?!]{{0,60}}\b(?:fine|flat|fits?|works?|runs?|trains?|less|only)\b|"
    rf"\b(?:with|enabl\w+|using|turn\w* on)\b[^.?!]{{0,12}}\b{_GRAPHS}\b[^.?!]{{0,80}}\b(?:OOMs?|out of memory|grows?|more memory|twice|double\w*|leaks?)\b|"
    rf"\b{_GRAPHS}\b[^.?!]{{0,30}}\bnot (?:used|enabled|on)\b[^.?!]{{0,50}}\b(?:fine|flat|fits?|works?|runs?|only)\b",
    re.IGNORECASE,
)
# a later run of the same process: that "the next model fails" or "later runs crash" says neither of memory nor of the process
_NOT = r"\b(?:not?|never|without|n't|instead|avoid\w*)\b"
_AGAIN = pattern(
    r"\brestart\w*\b[^.?!]{0,30}\b(?:kernel|runtime|notebook|process|session|python)\b[^.?!]{0,40}\b(?:works?|fine|runs?|fits?|trains?|helps?)\b|"
    rf"\b(?:second|2nd|third|later|subsequent) (?:run|trial|time|fold|call|experiment|sweep)\b(?:(?!{_NOT})[^.?!]){{0,60}}\b(?:OOMs?|out of memory)\b|"
    r"\b(?:have|had|need|needs) to restart\b[^.?!]{0,40}\b(?:kernel|runtime|notebook|server|session|process|python)\b[^.?!]{0,30}\b(?:every|each) time\b|"
    rf"\b(?:re-?run\w*|re-?execut\w+|run(?:ning)? (?:it|the (?:same )?cell|this cell) again)\b(?:(?!{_NOT})[^.?!]){{0,80}}"
    r"\b(?:no more memory|OOMs?|out of memory)\b|"
    r"\b(?:in|with|from|after) a (?:fresh|new|clean|separate) (?:python )?(?:interpreter|process|session|kernel|runtime|shell)\b[^.?!]{0,40}"
    r"\b(?:works?|fine|runs?|fits?|trains?|ok)\b|"
    r"\b(?:every|each|all|any) (?:later|following|subsequent|next|other|further) (?:cells?|runs?|calls?|trials?|attempts?)\b[^.?!]{0,40}"
    r"\b(?:OOMs?|out of memory)\b|"
    r"\b(?:until|unless) I (?:restart|kill|reset)\b[^.?!]{0,30}\b(?:kernel|runtime|notebook|session|python|process)\b|"
    r"重启[^。？?]{0,10}(?:就好|正常|可以|没问题)|第(?:二|2|三)次[^。？?]{0,16}(?:OOM|爆显存|显存不足)",
    re.IGNORECASE,
)
_UNEVEN = pattern(
    r"\b(?:(?:one|single|some|few|a|its|that|this|hot|busiest) (?:rank|expert|gpu)s?|(?:rank|expert|gpu) ?\d{1,4})\b[^.?!]{0,20}"
    r"\b(?:gets?|receiv\w+|takes?|sees?|has|have)\b[^.?!]{0,12}"
    r"(?:\b[5-9]\d ?%|\bmost\b|\b(?:nearly |almost )?all\b|\bfar more\b|\b\d{1,3} ?x\b|\btimes\b)[^.?!]{0,16}\btokens\b",
    re.IGNORECASE,
)
_NCCL_SET = r"NCCL_(?:BUFFSIZE|IB_HCA|SOCKET_IFNAME|ALGO|PROTO|NTHREADS|NSOCKS\w*|NVLS\w*|CROSS_NIC|MIN_\w+|MAX_\w+|NCHANNELS\w*)"
_MORE = r"(?:went up|goes up|increas\w+|grow\w*|grew|rises|rose|(?:much |far )?more|higher|larger)"
_NCCL_MORE = pattern(
    rf"\b{_MEMORY}\b[^.?!]{{0,40}}\b{_MORE}\b[^.?!]{{0,60}}\b{_NCCL_SET}\b|\b{_NCCL_SET}\b[^.?!]{{0,80}}\b{_MEMORY}\b[^.?!]{{0,40}}\b{_MORE}\b|"
    rf"\b{_NCCL_SET}\b[^.?!]{{0,60}}\b{_MORE} (?:\w+ )?{_MEMORY}\b",
    re.IGNORECASE,
)
_ONE_GPU = r"(?:\b(?:on|with|using) )?\b(?:(?:a |one |1 )?single|one|1) (?:GPU|card|device)\b"
_ONE_RUNS = pattern(
    rf"{_ONE_GPU}[^.?!]{{0,40}}\b(?:fine|works?|worked|runs?|ran|fits?|trains?|no (?:problem|OOM|issue))\b|"
    rf"\b(?:works?|worked|runs?|ran|fits?|trains?) (?:\w+ ){{0,2}}{_ONE_GPU}",
    re.IGNORECASE,
)
_MANY_GPU = (
    r"(?:\bmulti(?:ple)?[-_ ]?(?:GPUs?|cards?)\b|\b(?:two|four|eight|several|more|[2-9]|16) (?:GPUs|cards)\b|"
    r"\b(?:num_processes|nproc_per_node)[ =][2-9]\b|\bDDP\b)"
)
_MANY_FAIL = pattern(rf"{_MANY_GPU}[^.?!]{{0,100}}\b(?:OOMs?|out of memory)\b|\b(?:OOMs?|out of memory)\b[^.?!]{{0,40}}{_MANY_GPU}", re.IGNORECASE)
_SHARDING = pattern(r"zero[-_ ]{0,2}(?:stage[-_ ]?)?3\b|\bstage[-_ ]?3\b|\bfsdp|\bshard", re.IGNORECASE)
_NOBODY = pattern(
    r"\bno (?:other )?(?:\w+ )?process(?:es)?\b|(?:\bnot|n't)\b[^.?!]{0,30}\b(?:any|other)\b[^.?!]{0,20}\b(?:process(?:es)?|jobs?|programs?|training)\b|"
    r"\bnothing (?:else )?(?:is )?(?:running|listed)\b|\b(?:before|without) (?:I )?(?:start\w*|running|launch\w*)\b|"
    r"\bafter (?:I )?(?:kill\w*|stopp?\w*|exit\w*|terminat\w*|the (?:run|job|process) (?:ended|died|crashed|was killed))\b|"
    r"没有?(?:任何|其他|别的)?(?:进程|程序)|(?:杀掉|杀死|结束|停掉|kill)[^。]{0,10}(?:进程|程序)",
    re.IGNORECASE,
)
_SLEEPS = pattern(r"\b(?:asleep|sleeping|after sleep(?:ing)?|sleep mode|in sleep)\b|休眠", re.IGNORECASE)
_HELD = pattern(r"(?<![\w.])(\d{1,6}(?:\.\d{1,3})?) ?(GiB|GB|MiB|MB)\b", re.IGNORECASE)
_FREED = pattern(r"\b(?:freed|releas\w+|reclaim\w+)\b", re.IGNORECASE)
_CHECKPOINTING = r"(?:[\w.]*(?:activation|gradient)[ _-])?(?:checkpointing|recomput\w+)"  # also a switch of that name
_LEARNED = r"(?:loss|results?|outputs?|gradients?|accuracy|quality|convergence|training dynamics)"  # what recomputing leaves as it is, rightly
_CHANGES_NOT = (
    r"(?:makes? no difference|has no effect|saves? no|(?:doesn't|does not|didn't|did not) (?:\w+ )?(?:reduce|save|lower|change|affect|help)"
    rf"(?! (?:the |my |our )?{_LEARNED})|"
    r"(?:stay|remain|is|are|was|were)s? (?:\w+ )?(?:the same|unchanged|identical))"
)
_NO_DIFFERENCE = pattern(
    rf"\b(?:same|identical|unchanged|equal)\b[^.?!]{{0,60}}\bwith(?: and without|out and with| or without)\b[^.?!]{{0,30}}\b{_CHECKPOINTING}|"
    rf"(?<![\w.]){_CHECKPOINTING}\b(?:(?!\b{_LEARNED}\b)[^.?!]){{0,60}}\b{_CHANGES_NOT}|"
    r"(?:梯度|激活|重)(?:检查点|计算)[^。？?]{0,30}(?:显存|内存)[^。？?]{0,12}(?:没有?变|不变|一样|没有?减|没有?降)",
    re.IGNORECASE,
)
_FIRST = r"(?:GPU|card|device|cuda)[ :]?0\b"
_PROCESSES = r"(?:each|every|all|both)\b[^.?!]{0,20}\b(?:scripts?|process\w*|ranks?|workers?|jobs?|tasks?)\b"
_HOLDS = (
    r"(?:occup\w+|hold(?:s|ing)?|used?|uses|fill\w*|memory|puts?|place[sd]?|load(?:s|ed)?|land(?:s|ed)?|sits?|shows? up|showed up|appears?|ends? up|"
    r"allocat\w+|runs?|go(?:es)?)\b"
)
_FIRST_CARD = pattern(
    rf"\b{_FIRST}[^.?!]{{0,60}}\b{_HOLDS}[^.?!]{{0,60}}\b{_PROCESSES}|\b{_PROCESSES}[^.?!]{{0,40}}\b{_HOLDS}[^.?!]{{0,30}}\b{_FIRST}|"
    # "all the GPU memory was occupied by card 0", "memory of GPU0 is much higher than on the others"
    rf"\ball (?:the |of the )?(?:GPU |V?RAM )?memory\b[^.?!]{{0,20}}\b(?:occupied|allocated|used|taken|held)\b[^.?!]{{0,10}}\b(?:by|on|in) {_FIRST}|"
    rf"\b{_FIRST}\b[^.?!]{{0,20}}\b(?:is |are )?(?:significantly |much |far |way )?(?:higher|larger|more)\b[^.?!]{{0,40}}\bother (?:GPUs|cards|devices)\b|"
    # what stands on the first card beside its own rank: processes or contexts of the others
    rf"\b(?:extra|additional|other|more|several|\d)\b[^.?!]{{0,20}}\b(?:process(?:es)?|contexts?|ranks?|workers?)\b[^.?!]{{0,60}}\b(?:on|in|to) (?:the )?"
    rf"(?:{_FIRST}|first (?:gpu|card|device))|"
    rf"\b(?:rank|process|worker) [1-9]\d?\b[^.?!]{{0,40}}\b(?:allocat\w+|use[sd]?|tak\w+|occup\w+|has|hold\w*)\b[^.?!]{{0,40}}\b{_FIRST}",
    re.IGNORECASE,
)
_RUN = r"(?:scripts?|configs?|configurations?|commands?|setups?|code|runs?|settings|jobs?)"
_WORKED = pattern(
    rf"\b(?:same|this|identical) {_RUN}\b[^.?!]{{0,60}}\b(?:work(?:ed|s)?|ran|fit|was fine)\b[^.?!]{{0,60}}\b"
    r"(?:before|older(?! (?:gpu|card|machine|model))|previous\w*|earlier|version|last (?:week|month|year|time|night|release|version))\b|"
    rf"\b(?:used to (?:work|run|fit)|worked (?:fine |well )?(?:before|until|with (?:the )?(?:older|previous|earlier)))\b",
    re.IGNORECASE,
)
LONGEST = 1500
_PERCENT = pattern(r"(\d{1,4}\.\d{1,2})\s?GiB\s?\((\d{1,3}\.\d{1,2})%\)")


def _first(evidence: Evidence, seen: re.Pattern[str]) -> tuple[str, str] | None:
    for line in evidence.lines:
        if 20 <= len(line.text) <= LONGEST and not line.text.lstrip().startswith("#") and (found := seen.search(line.text)) is not None:
            end = min((at for mark in "?\uff1f" if (at := line.text.find(mark, found.end())) >= 0), default=-1)
            if end < 0 or "." in line.text[found.end() : end]:
                return line.where, line.text
    return None


def grows(evidence: Evidence) -> str | None:
    """Memory grows from step to step, as the reporter says, in training."""
    found = _first(evidence, _GROWS)
    return None if found is None or _EVALUATION.search(found[1]) else f"memory grows from step to step, as is written in {found[0]}"


def grows_in_evaluation(evidence: Evidence) -> str | None:
    """The same of evaluation batches."""
    found = _first(evidence, _GROWS)
    return f"memory grows from one evaluation batch to the next, as is written in {found[0]}" if found is not None and _EVALUATION.search(found[1]) else None


def checkpointing_changes_nothing(evidence: Evidence) -> str | None:
    """The peak is the same with and without checkpointing."""
    found = _first(evidence, _NO_DIFFERENCE)
    return f"checkpointing changes nothing, as is written in {found[0]}" if found is not None else None


def worked_before(evidence: Evidence) -> str | None:
    """The same run went through with an earlier version: what it holds did not become larger by itself."""
    found = _first(evidence, _WORKED)
    return f"the same run went through before, as is written in {found[0]}" if found is not None else None


def first_card_fills(evidence: Evidence) -> str | None:
    """Every process holds memory on the first card, whichever it was given."""
    found = _first(evidence, _FIRST_CARD)
    return f"every process holds memory on the first card, as is written in {found[0]}" if found is not None else None


def whole_on_each(evidence: Evidence) -> str | None:
    """Every card loads or holds the whole model."""
    found = _first(evidence, _ON_EACH)
    return f"every card loads the whole model, as is written in {found[0]}" if found is not None else None


def fp8_saves_nothing(evidence: Evidence) -> str | None:
    """fp8 takes as much memory as 16 bit, or more."""
    found = _first(evidence, _FP8_SAVES_NOTHING)
    return f"fp8 takes no less memory than 16 bit, as is written in {found[0]}" if found is not None else None


def nobody_runs(evidence: Evidence) -> str | None:
    """Nothing of the reporter's runs on the card at the moment that is shown."""
    found = _first(evidence, _NOBODY)
    return found[0] if found is not None else None


_ENDED_RUN = pattern(
    r"\b(?:ctrl[ +-]?c|\^C|kill\w*|stopp?\w*|interrupt\w*|terminat\w*|exit\w*|clos(?:ed|ing)|crash\w*|died|finished)\b|(?:杀掉|杀死|结束|停掉|中断|退出)",
    re.IGNORECASE,
)
_STILL = pattern(
    r"\b(?:GPU|card|memory|VRAM|nvidia-smi)\b[^.;!?]{0,40}\b(?:still|stays?|remains?|keeps?)\b[^.;!?]{0,40}\b(?:used|use|full|occupied|allocated|taken|held|hold\w*|shows?)\b|"
    r"\bstill (?:shows?|holds?|has|uses?|occupies|takes)\b[^.;!?]{0,40}\d ?(?:GB|GiB|MB|MiB)\b|(?:显存|显卡)[^。]{0,10}(?:还|仍|依然)[^。]{0,6}(?:占|满|被)",
    re.IGNORECASE,
)

_ROOM = pattern(r"\bstill\b[^.;!?]{0,60}\b(?<!not )(?:free|available|left|unused|empty)\b", re.IGNORECASE)  # what is still there is room


def left_in_use(evidence: Evidence) -> str | None:
    """A run was ended, and the card's memory is still in use: the place where both are written."""
    for line in evidence.lines:
        if len(line.text) <= LONGEST and _STILL.search(line.text) and _ENDED_RUN.search(line.text) and not _ROOM.search(line.text):
            return line.where
    return None


def held_asleep(evidence: Evidence) -> tuple[int, str] | None:
    """The largest figure that a generation engine holds while it sleeps, bytes, and where it is written."""
    best: tuple[int, str] | None = None
    for line in evidence.lines:
        if len(line.text) > LONGEST or not _SLEEPS.search(line.text) or _FREED.search(line.text):
            continue
        for number, unit in _HELD.findall(line.text):
            size = round(float(number) * (1 << 30 if unit[0] in "Gg" else 1 << 20))
            if best is None or size > best[0]:
                best = size, line.where
    return best


def graphs_cost(evidence: Evidence) -> str | None:
    """With CUDA graphs it takes more memory than without, or fails."""
    found = _first(evidence, _GRAPHS_COST)
    return f"with CUDA graphs it takes more than without them, as is written in {found[0]}" if found is not None else None


def fails_again(evidence: Evidence) -> str | None:
    """A later run in the same process fails, or a fresh process runs."""
    found = _first(evidence, _AGAIN)
    return f"what ran before in the process decides, as is written in {found[0]}" if found is not None else None


def uneven_tokens(evidence: Evidence) -> str | None:
    """One rank or expert receives most of the tokens."""
    found = _first(evidence, _UNEVEN)
    return f"most tokens go to one rank or expert, as is written in {found[0]}" if found is not None else None


def rises_with_nccl(evidence: Evidence) -> str | None:
    """Memory is more with one value of a setting of NCCL than with another."""
    found = _first(evidence, _NCCL_MORE)
    return f"memory rises with a setting of NCCL, as is written in {found[0]}" if found is not None else None


def one_card_runs(evidence: Evidence) -> str | None:
    """The same training runs on one card and runs out of memory on several."""
    one, many = _first(evidence, _ONE_RUNS), _first(evidence, _MANY_FAIL)
    return f"on one card it runs ({one[0]}), on several it runs out of memory ({many[0]})" if one is not None and many is not None else None


def most_used(run: Run, evidence: Evidence) -> tuple[int | None, int | None]:
    """The most that a run prints as allocated, reserved or used on a card, and the card's size, bytes; ``None`` where one is not known."""
    figures = [s.device_used_bytes or s.peak_reserved_bytes or s.reserved_bytes or s.peak_allocated_bytes or s.allocated_bytes for s in evidence.samples]
    figures += [d.used_bytes for d in evidence.devices]
    totals = [d.total_bytes for d in evidence.devices if d.total_bytes]
    for line in evidence.lines if not totals else ():
        if (found := _PERCENT.search(line.text)) is not None and float(found[2]) > 0:  # torchtitan components/metrics.py prints both
            totals.append(round(float(found[1]) * (1 << 30) * 100 / float(found[2])))
    used = max((f for f in figures if f), default=None)
    return used, max(totals, default=None) or (run.usable[0] if run.usable else None)


def names_sharding(evidence: Evidence) -> bool:
    """Whether a text speaks of a strategy that divides weights."""
    return any(_SHARDING.search(line.text) for line in evidence.lines)
