"""The build hook of the wheel and the editable install: writes ``knowledge/``'s YAML as one JSON beside the package.

YAML is what people read and review; parsing it takes a third of a second at every start, the same data as JSON a few milliseconds.
``advisor.knowledge`` uses an entry only while its digest is that of the YAML file, so that an edited file is never shadowed by an old build.
"""

from __future__ import annotations

import compileall
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledKnowledge(BuildHookInterface[Any]):
    """Hatchling's custom hook (``tool.hatch.build.hooks.custom``)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the compiled file and let it travel in the wheel, although git ignores it. ``version``: ``standard`` or ``editable``."""
        sys.path.insert(0, self.root)  # the build runs apart from any installed advisor
        try:
            from advisor import compiling
        finally:
            sys.path.remove(self.root)
        compiling.write(Path(self.root))
        build_data["artifacts"].append(f"advisor/{compiling.FILE}")
        if version == "editable":  # pip compiles what it copies, and an editable install copies nothing
            compileall.compile_dir(Path(self.root) / "advisor", quiet=1)
