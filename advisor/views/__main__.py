"""``python -m advisor.views run FILE ...``: Streamlit, with what every page needs loaded before the server answers.

Streamlit runs a page's file only when a browser comes, and would load everything while that person waits.
"""

from __future__ import annotations

import runpy


def main() -> None:
    """Load, then become ``python -m streamlit`` with the same arguments."""
    from advisor.views import warming

    warming.load()
    warming.begin()
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
