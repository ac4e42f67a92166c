"""What notebooks say when their kernel is gone: hosted ones name the memory, Jupyter and VS Code only that it ended.

Sources: Colab's and Kaggle's own notices ("Your session crashed after using all available RAM", "Your notebook tried to allocate more memory than is
available. It has restarted."); jupyterlab ("The kernel for x.ipynb appears to have died. It will restart automatically"); vscode-jupyter ("The Kernel
crashed while executing code in the current cell or a previous cell").
"""

from __future__ import annotations

import re

from advisor.reading.found import Found
from advisor.reading.pattern import pattern as lazily

HEAD = lazily(
    r"session crashed (?:after using all|for an unknown reason)|notebook tried to allocate more memory than is available|"
    r"\bkernel\b.{0,80}\b(?:appears to have died|crashed while executing)|\bKernel died with exit code|DeadKernelError",
    re.IGNORECASE,
)
_MEMORY = lazily(r"using all available RAM|tried to allocate more memory than is available", re.IGNORECASE)


def read_failure(text: str) -> Found | None:
    """Host memory where the notice says so; else only that a process ended, which is nobody's memory error yet."""
    if _MEMORY.search(text) is not None:
        return Found("host-memory", "cpu", details=(("what", "notebook"),))
    return Found("collective", details=(("what", "kernel died"),), consequence=True) if HEAD.search(text) is not None else None
