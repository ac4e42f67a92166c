"""The probe's child process: a job as JSON on standard input, the answer as JSON on standard output, progress on standard error.

With ``--many`` it stays, loads the libraries once, and answers a request a line, each in a process of its own that it forks.
"""

from __future__ import annotations

import json
import sys

from advisor.simulation import answering, serving


def main() -> int:
    """Answer one request, or many."""
    if "--many" in sys.argv[1:]:
        return serving.serve()
    answering.limit()
    out = sys.stdout
    try:
        request = json.load(sys.stdin)
    except ValueError as error:
        json.dump({"error": f"the request is no JSON: {error}"}, out)
        return 0
    json.dump(answering.answer(request), out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
