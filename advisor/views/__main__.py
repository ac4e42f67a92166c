"""``python -m advisor.views run FILE ...``: Streamlit, with what every page needs loaded before the server answers.

Streamlit runs a page's file only when a browser comes, and would load everything while that person waits.
"""

from __future__ import annotations

import runpy


def main() -> None:
    """Load, then become ``python -m streamlit`` with the same arguments."""
    import numpy  # noqa: F401  the page's icon needs both
    import PIL.Image  # noqa: F401

    import advisor.diagnosis
    import advisor.reading
    import advisor.views.causes
    import advisor.views.changes
    import advisor.views.facts
    import advisor.views.leaving
    import advisor.views.proving  # noqa: F401
    from advisor.views import warming

    warming.begin()
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
