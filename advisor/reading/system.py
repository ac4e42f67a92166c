"""The operating system under which a run died, where its text shows one: Windows, whose shell and whose PyTorch differ.

Sources: CPython ``traceback.py`` (``File "C:\\\\train\\\\train.py", line 3``), the prompts of PowerShell (``PS C:\\\\train>``) and cmd (``C:\\\\train>``),
``platform.platform()`` as ``torch.utils.collect_env``, ``transformers-cli env`` and ``advisor collect`` print it (``Windows-10-10.0.19045-SP0``,
``OS: Microsoft Windows 11``). The value is the shell's name where a prompt shows it, the release where one is printed, else the system's name: nothing
computes with it. A path in a comment or in a sentence says nothing of where the run was.
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.evidence import Fact
from advisor.reading.lines import Excerpt
from advisor.reading.merge import GUESS, PRINTED, PROSE, Ranked
from advisor.reading.pattern import pattern as lazily

FIELD = "framework.versions.windows"
_FRAME = lazily(r"^\s*File \"?(?:[A-Za-z]:[\\/]|[^\"/]{0,300}\\[^\"/]{0,300}\.py\")")  # a home's path is masked: ``~\asr\train.py``
_PROMPT = lazily(r"^(?:\(\w[\w.-]{0,40}\) )?(PS )?[A-Za-z]:\\[^<>|\"*?:]{0,200}> ?\S")
_PRINTED = lazily(r"^\s*(?:-\s*)?(?:OS|Platform|platform)\s*:\s*(?:Microsoft )?Windows[- ](\d[\w.]{0,20}|[A-Z]\w{1,20})")


def facts_of(text: Excerpt) -> Iterator[Ranked]:
    """That the run was on Windows, from the first line of each kind that says so."""
    seen: set[int] = set()
    for line in text.lines:
        if (m := _PRINTED.search(line.text)) is not None:
            value, rank = m[1].rstrip("."), PROSE
        elif (m := _PROMPT.search(line.text)) is not None:
            value, rank = ("PowerShell" if m[1] else "cmd"), PRINTED
        elif _FRAME.search(line.text) is not None:
            value, rank = "Windows", GUESS
        else:
            continue
        if rank not in seen:
            seen.add(rank)
            yield Ranked(Fact(FIELD, value, "read", text.where(line), text=line.text.strip()[:200]), rank)
