"""What people say of a failure whose text they did not paste: that memory ran out, and at which moment.

A sentence counts when it states that it happened. A wish, a question, a condition and a negation do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from advisor.evidence import Failure, Frame
from advisor.reading.lines import Excerpt
from advisor.reading.pattern import pattern
from advisor.reading.phase import phase_of
from advisor.reading.tracebacks import package_path

LINES = 300  # of a text that are looked at: people write above a log, not in its middle
SHORTEST, LONGEST = 10, 2000  # characters of a line; ten of them say something in Chinese
AFTER = 8  # lines under the sentence that may show the place
_MESSAGE = pattern(r"(?:[\w.]{0,40}(?:RuntimeError|OutOfMemoryError)\b|(?:CUDA|HIP|MPS|XPU)\b[\w ]{0,12} out of memory|[Tt]ried to allocate)")
_LINK = pattern(r"github\.com/[\w.-]{1,80}/[\w.-]{1,80}/blob/[\w.-]{1,80}/([\w./-]{1,300}\.py)#L(\d{1,6})")
_CODE = pattern(r"^\s{4,40}(?:[\w.\[\], ]{1,80} = )?[A-Za-z_][\w.]{0,80}\([^\n]{0,300}\)$")
_SENTENCE = pattern(r"(?:(?<=[.!?;])|(?<=[.!?][\"')]))\s+(?=[A-Z`\"'(])|(?<=[\u3002\uff01\uff1f\uff1b?!])\s*(?=\S)")
_RAN_OUT = pattern(
    # Ray's line counts those killed for want of memory, 0 among them: its own reader reads the count
    r"(?<!memory pressure \()\b(?:OOM|oom(?![-_.\w]))(?:s|ed|ing|-ing|'?d|-?killed)?\b(?![-_/]\w)|(?i:\bout[ -]of[ -](?:GPU |CUDA |V?RAM )?memory\b)|"
    r"\b(?:runs?|ran|running) out of (?:GPU |CUDA )?(?:memory|V?RAM)\b|\bRESOURCE_EXHAUSTED\b"
)
_RAN_OUT_CHINESE = pattern(
    r"(?i:(?<![A-Za-z])oom(?![A-Za-z]))(?=[^A-Za-z]*[\u4e00-\u9fff])|(?<=[\u4e00-\u9fff])\s?(?i:oom(?![A-Za-z]))|显存(?:还是|仍然|依然)?(?:不够|不足|溢出|爆|炸)|[爆炸](?:了)?显存|显存.{0,6}OOM|"
    r"(?<![\u4e00-\u9fff]内存)(?:加载|[装放塞跑])不下"
)
# "2 x A100: got cuda oom": few words that state it all the same
_HAPPENED = pattern(
    r"\b(?:got|gets?|getting|hits?|hitting|had|throws?|gives?|giving|meets?|met|encounter\w*|always|still|causes?|reports?|results? in|ends? (?:in|with))\s+"
    r"(?:(?:a|an|the|this|me|cuda|gpu|torch)\s+){0,3}(?:OOM|out[ -]of[ -](?:\w+ )?memory)\b|"
    r"^\W{0,3}(?:(?:CUDA|GPU)\s)?(?:OOMs?|out[ -]of[ -]memory)\b "
    r"(?:error )?(?:right |immediately |always |already )?(?:at|in|on|during|after|before|when|while|with)\b",
    re.IGNORECASE,
)
_HAPPENED_CHINESE = pattern(
    r"(?:一直|总是|还是|仍然|直接|都|出现|然后|依然|依旧|报)\s?(?:会|报|出现)?\s?(?:OOM|爆显存|显存不足|显存溢出|out of memory)", re.IGNORECASE
)
_DIED = pattern(  # beside a failure that is pasted: when it came
    r"\b(?:dies|died|fails|failed|crashe[sd]|blows up|breaks)\b|"
    r"\b(?:problem|error|issue|failure|OOM|crash)\s+(?:only\s+|always\s+)?(?:comes?|came|happens?|happened|occurs?|occurred|appears?|appeared|arises?)\b|:\s*$",
    re.IGNORECASE,
)
_ON_CPU = r"\bCPU[ -](?:OOM|out[ -]of[ -]memory)|\b(?:OOM\w{0,3}|out[ -]of[ -]memory) (?:on|in|at) (?:the )?(?:CPU|host)\b"
_OF_THE_HOST = pattern(rf"\b(?:host|system|CPU) (?:memory|RAM)\b|\bon the host\b|\bRAM\b|OOM-?killed|内存|{_ON_CPU}", re.IGNORECASE)
_HOST_FULL = pattern(
    r"(?:\b(?:host|system|CPU|main) (?:memory|RAM)\b|(?<!GPU )(?<!CUDA )\bRAM\b)"
    r"(?:(?!GPU|CUDA|\bcard|VRAM|\bbut\b|\band\b(?![^.]{0,30}\bkilled))[^.?!;]){0,60}"
    r"\b(?:full|fills? up|filled|exhaust\w*|runs? out|ran out|OOM\w*|out[ -]of[ -]memory|killed|crash\w*)\b|"
    r"\b(?:runs?|ran|running) out of (?:host |system |CPU )(?:memory|RAM)\b|\bout of (?:system |CPU )?RAM\b|"
    rf"{_ON_CPU}|"
    r"(?<!GPU)(?<!显卡)内存(?:还是|就|会|直接|被|很快){0,2}(?:不足|不够|爆|溢出|占满|耗尽|用满|炸)",
    re.IGNORECASE,
)
_PLENTY = pattern(r"\b(?:not|never|without|plenty|n't)\b|n't\b|不会|没有", re.IGNORECASE)
_OF_THE_CARD = pattern(
    r"\b(?:GPU|card)s?(?:'s)? (?:memory )?(?:is |are |goes |still )?(?:runs?|ran|running|out|OOM)\b|\bon the (?:GPU|card)\b|\bCUDA (?:OOM|out)\b|显存",
    re.IGNORECASE,
)
# "a Titan RTX with 24GB of RAM": the card's, whatever it is called
_OF_A_CARD = pattern(r"(?<=RTX)(?: \d{4}(?: ?Ti)?)? (?:with|has) \d{1,3} ?GB (?:of )?RAM\b|(?<=GPU) (?:with|has) \d{1,3} ?GB (?:of )?RAM\b", re.IGNORECASE)
_ASKED_CHINESE = pattern(r"[吗么呢]\W{0,2}$|会不会|是否|如何|怎么|避免|防止|解决")
_COMMA = pattern(r"[\uff0c,]")
_CHINESE = pattern(r"[\u4e00-\u9fff]")
_WORDS = pattern(r"[A-Za-z]{2,}")
_NOT_STATED = pattern(
    r"\b(?:no|not|never|without|avoid\w*|prevent\w*|instead of|until|if|whether|would|could|might|may|should|will|can|want|trying to|in order to|thought|"
    r"before it|so that|used to|solve[ds]?|fix\w*|handle\w*|isn't|doesn't|didn't|don't|wasn't|n't)\b(?=.*(?:OOM|out[ -]of|ran out|run out))|\?\s*$",
    re.IGNORECASE,
)
_LONG_AGO = pattern(
    r"\b(?:last|the previous|an earlier) (?:week|month|year|version|attempt|machine)\b|\b(?:back then|in the past|a (?:week|month|year) ago)\b", re.IGNORECASE
)
_TURN = pattern(r"\b(?:but|however|yet|though|nevertheless)\b|;|, and ", re.IGNORECASE)  # what stands before it is of another mind
_WHY = pattern(r"\W*why (?:am|is|are|do|does|did)\b", re.IGNORECASE)  # asks for the reason of what happened
_MOMENTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, pattern(text, re.IGNORECASE))
    for phase, text in (
        ("load", r"(?:加载|载入)(?:模型|权重|过程|时|的时候|checkpoint|不下|.{0,4}模型)"),
        ("resume", r"(?:恢复|续)训|断点.{0,4}(?:恢复|继续)|resume.{0,6}(?:时|的时候)"),
        ("eval", r"(?:评估|验证|评测)(?:时|阶段|过程|的时候)"),
        ("save", r"保存(?:模型|权重|checkpoint|时|的时候|过程)"),
        ("merge", r"合并(?:模型|权重|lora|adapter|时|的时候|过程)?"),
        ("step", r"\boptimi[sz]er\.step\b|\b(?:in|at|during|on|inside) (?:the )?(?:first )?optimi[sz]er(?:'s)? step"),
        (
            "step",
            r"\b(?:at|in|during) the (?:optimi[sz]er )?(?:step|update)\b(?!\s*(?:\d|where|of|when|that|size))|"
            r"\b(?:in|at|during) (?:the )?(?:grad\w* clipping|clip_grad\w*)",
        ),
        ("merge", r"\bsave_pretrained_merged\b|\bmerg(?:e|ing) (?:the |my )?(?:lora|adapters?)\b"),
        (
            "save",
            r"\b(?:model|checkpoint|weights|state) (?:is|are|was|were|gets?) (?:being )?(?:saved|written|dumped)\b|\btr(?:y|ied|ying) to save\b|"
            r"(?:[:;,]|\bbut|\band|\bthen) (?:on |in )?saving (?:the |a |my )?(?:final |full |whole |merged )?(?:model|checkpoint|weights|state)\b",
        ),
        (
            "resume",
            r"\b(?:when|while|after|once) (?:I |we |it )?resum(?:e|ed|es)\b|^resuming\b|\btr(?:y|ied|ying) to resume\b|"
            r"\b(?:I|we) (?:\w+ ){0,5}?resum(?:e|ed) (?:the |my )?(?:training |run )?from\b",
        ),
        (
            "load",
            r"\b(?:model|checkpoint|weights|shards) (?:is|are|was|were|gets?) (?:being )?(?:loaded|materiali[sz]ed)\b|"
            r"\bloads? the (?:whole|full|entire) model\b|\b(?:at|on) load(?:ing)?\b|"
            r"\b(?:at|in|during|on) (?:the )?(?:trainer|model|engine)(?:'s)? (?:init\w*|construction|creation|set-?up)\b",
        ),
        ("merge", r"\bmerge_and_unload\b|\b(?:when|while|during|on|after) (?:the )?merging\b"),
        ("save", r"\b(?:when|while|during|at|on|upon) (?:the )?(?:model |checkpoint |final )?saving\b|\bsave_(?:model|checkpoint|pretrained)\b"),
        ("resume", r"\b(?:when|while|during|after|on|upon) resuming\b|\bresume_from_checkpoint\b"),
        (
            "load",
            r"\b(?:when|while|during|at) (?:the )?(?:model |weight )?loading\b|\bat (?:about )?\d{1,2} ?% of (?:the )?(?:checkpoint )?shards\b|"
            r"\bloading (?:of )?(?:the |my )?(?:checkpoint|model|weights|shards)\b.{0,60}%",
        ),
        ("sync", r"(?<![A-Za-z])wak(?:es?|ing)[ _-]?up (?:the )?weights?(?![A-Za-z])|\bwake_up\(tags=\[[\"']weights"),
        ("rollout", r"(?<![A-Za-z])wak(?:es?|ing)[ _-]?up(?![A-Za-z])(?! (?:the )?weights?(?![A-Za-z]))(?!\(tags=\[[\"']weights)"),
        ("sync", r"\b(?:when|while|during|at|on|after) (?:the )?(?:first )?(?:weight[s ]?(?:sync\w*|update|transfer)|syncing|updating (?:the )?weights)"),
        (
            "rollout",
            r"\b(?:when|while|during|at|in) (?:the )?(?:rollouts?|generation|generating|sampling)\b|"
            r"\b(?:when|once|as soon as) (?:it|the (?:trainer|script|run)) (?:starts?|begins?) (?:to )?(?:sampl\w+|generat\w+)",
        ),
        (
            "eval",
            r"\b(?:as soon as|once|when) (?:the )?(?:evaluation|validation|eval) (?:starts|begins|runs)|"
            r"\b(?:in|at|during|while|when|for|on) (?:the |my )?(?:training )?(?:evaluat\w+|validati\w+|validating|eval\b|eval(?:uation)? step)",
        ),
        ("backward", r"\b(?:in|at|during|on) (?:the )?(?:first |second )?(?:loss\.)?backward\b"),
        ("forward", r"\b(?:in|at|during|on) (?:the )?forward\b"),
        (
            "eval",
            r"\b(?:evaluation|validation)\b[^.?!,;]{0,60}\b(?:OOMs?|out of memory)|"
            r"\bat (?:about |around )?\d{1,2} ?% of (?:the )?(?:evaluat\w+|validati\w+)\b|"
            r"\b(?:evaluation|validation) (?:then |always |seems to )?(?:dies?|died|crash\w*)\b|"
            r"训练[^。]{0,8}(?:正常|没问题|没有问题|可以)[^。]{0,20}(?:评估|验证|评测)",
        ),
        ("resume", r"从头[^。]{0,10}(?:正常|可以|没问题)[^。]{0,16}(?:checkpoint|断点|继续)|加载.{0,4}checkpoint.{0,4}继续"),
    )
)


def failure_told(texts: Sequence[Excerpt]) -> Failure | None:
    """The last sentence that states that memory ran out, the card's or else the host's, as a failure without counters."""
    last: Failure | None = None
    for where, sentence in _sentences(texts):
        if states(sentence):
            frames = _shown(texts, where) or _named_call(where, sentence)
            phase = moment(sentence) or (decided[0] if (decided := phase_of(frames)) is not None else None)
            last = Failure(kind="gpu-memory", where=where, text=sentence[:400], phase=phase, frames=frames, details=(("told", "in words"),))
    return last or _of_the_host(texts) or _died_with_figures(texts)


_CALL = pattern(r"\b(?:at|in|on|during|inside|calling|when|line|from)\b[^.?!]{0,24}?`?\b((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*\((?:[^()\n]{0,80})\))`?")


def _named_call(where: str, sentence: str) -> tuple[Frame, ...]:
    """The call that the sentence itself names as its place: "it is out of memory at logits.float()"."""
    found = _CALL.search(sentence)
    return () if found is None else (Frame(where, "", 0, "", found[1]),)


_KILLED = pattern(
    r"\b(?:job|process|script|training|run|program|it|python) (?:was|is|gets?|got|has been|just gets?) (?:silently |suddenly |just )?killed\b"
    r"(?! by (?:me|us|hand|mistake))",
    re.IGNORECASE,
)


def _of_the_host(texts: Sequence[Excerpt]) -> Failure | None:
    for where, sentence in _sentences(texts):
        if _KILLED.search(sentence) and not _NO_DEATH.search(sentence):
            return Failure(kind="host-memory", where=where, text=sentence[:400], backend="cpu", phase=moment(sentence), details=(("what", "killed"),))
        if _HOST_FULL.search(sentence) and not _PLENTY.search(sentence) and not sentence.rstrip().endswith(("?", "\uff1f")):
            return Failure(kind="host-memory", where=where, text=sentence[:400], backend="cpu", phase=moment(sentence), details=(("told", "in words"),))
    return None


_FIGURE_OF_MEMORY = pattern(r"\b(?:memory|mem|v?ram|gpu|card)\b|\u663e\u5b58", re.IGNORECASE)
_GIGABYTES = pattern(r"\d ?(?:GiB|GB|MiB|MB)\b")
_NO_DEATH = pattern(r"\b(?:not|never|n't|no longer|without|if|would|could|might|whether|until)\b|\?\s*$", re.IGNORECASE)
_OTHER_DEATH = pattern(  # the sentence says what it died of, and that is no memory
    r"\b[A-Z]\w{2,30}(?:Error|Exception)\b|\bNaNs?\b|(?i:\b(?:segmentation fault|segfault|assert\w*|time[ds]? ?-?out|deadlock|disk|power|network|reboot\w*)\b)"
)
_ENDED = pattern(
    r"\b(?:it|training|evaluation|validation|the (?:run|job|script|training)|everything) (?:then |always |just |seems to ){0,2}"
    r"(?:dies?|died|crash(?:e[sd])?|blows? up|is killed|gets killed)\b",
    re.IGNORECASE,
)


def _died_with_figures(texts: Sequence[Excerpt]) -> Failure | None:
    """The sentence that says the run died, where figures of memory are written beside it and no other cause is named."""
    written = ""
    for where, sentence in _sentences(texts):
        if _FIGURE_OF_MEMORY.search(sentence) and _GIGABYTES.search(sentence):
            written = where
        if written and _ENDED.search(sentence) and not _NO_DEATH.search(sentence) and not _OTHER_DEATH.search(sentence):
            details = (("told", "in words"), ("figures", written))
            return Failure(kind="gpu-memory", where=where, text=sentence[:400], phase=moment(sentence), details=details)
    return None


def _shown(texts: Sequence[Excerpt], where: str) -> tuple[Frame, ...]:
    """The place that is shown under the sentence: a link to a file of a repository, a line of code."""
    name, _, number = where.rpartition(":")
    lines = [line for text in texts if text.name == name for line in text.lines if int(number) <= line.number <= int(number) + AFTER]
    link = next((m for line in lines if (m := _LINK.search(line.text)) is not None), None)
    code = next((line.text.strip() for line in lines if _CODE.match(line.text)), "")
    if link is None:
        return (Frame(where, "", 0, "", code[:240]),) if code else ()
    return (Frame(where, package_path(link[1]), int(link[2]), "", code[:240]),)


def phase_told(texts: Iterable[Excerpt]) -> tuple[str, str] | None:
    """The moment that the last such sentence names, and the sentence."""
    found = None
    for _, sentence in _sentences(texts):
        if (states(sentence) or (_DIED.search(sentence) and not sentence.endswith("?"))) and (phase := moment(sentence)) is not None:
            found = phase, sentence
    return found


_JUST_SAID = pattern(
    r"^\W*(?:(?:and |but |so )?(?:it|I|then|still|always|this|gives?|gets?|got|CUDA|GPU)\s+){0,3}(?:OOMs?|out[ -]of[ -]memory)\W*$", re.IGNORECASE
)


def before_error(text: str) -> str:
    """What a person says on a line before the message of an out-of-memory error that is pasted behind it; else the whole line."""
    return _MESSAGE.split(text, maxsplit=1)[0] if "ried to allocate" in text else text


def states(sentence: str) -> bool:
    """Whether it says that memory ran out."""
    if (said := _RAN_OUT_CHINESE.search(sentence)) is not None:
        clause = sentence[: said.end()] + _COMMA.split(sentence[said.end() :])[0]
        return _ASKED_CHINESE.search(clause) is None
    sentence = _OF_A_CARD.sub(" ", sentence)
    found = _RAN_OUT.search(sentence)
    if found is None or (_OF_THE_HOST.search(sentence) and not _OF_THE_CARD.search(sentence)):
        return False  # of the host's memory the readers of exit codes and kernels know more
    clause = sentence[max((m.end() for m in _TURN.finditer(sentence, 0, found.start())), default=0) :]
    if _LONG_AGO.search(_TURN.split(sentence[found.end() :])[0]):
        return False
    return _NOT_STATED.search(clause) is None or _WHY.match(clause) is not None


def sentences(text: str) -> list[str]:
    """The sentences of a line."""
    return _SENTENCE.split(text.strip("#>*- "))


def moment(sentence: str) -> str | None:
    """The phase that a sentence names; where it names two, none."""
    found = {phase for phase, named in _MOMENTS if named.search(sentence)}
    return found.pop() if len(found) == 1 else None


def _sentences(texts: Iterable[Excerpt]) -> Iterator[tuple[str, str]]:
    for text in texts:
        for line in text.lines[:LINES]:
            said = before_error(line.text)
            if not SHORTEST <= len(said) <= LONGEST and _JUST_SAID.match(said) is None:
                continue
            for sentence in sentences(said):
                if (
                    len(_WORDS.findall(sentence)) >= 6
                    or len(_CHINESE.findall(sentence)) >= 6
                    or _HAPPENED.search(sentence)
                    or _HAPPENED_CHINESE.search(sentence)
                    or _JUST_SAID.match(sentence)
                ):
                    yield text.where(line), sentence
