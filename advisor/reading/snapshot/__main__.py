"""``python -m advisor.reading.snapshot FILE...``: each snapshot's summary as JSON, for the page, which takes no large files.

One file prints its summary; several write ``<name>.summary.json`` beside each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from advisor.reading.snapshot.process import summary_of


def main(names: list[str]) -> int:
    """Exit code 0, or 2 where a file was refused."""
    if not names:
        print("usage: python -m advisor.reading.snapshot FILE... ", file=sys.stderr)
        return 2
    code = 0
    for name in names:
        try:
            text = json.dumps(summary_of(Path(name)))
        except (ValueError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            code = 2
            continue
        if len(names) == 1:
            print(text)
        else:
            Path(f"{name}.summary.json").write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
