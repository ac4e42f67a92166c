"""What several test files share: where things are, and why a test is skipped."""

import importlib.util
import os
import shutil
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]
SLOW = ("simulation", "measurement", "browser", "launching", "bench", "accuracy", "rules")  # folders whose files take longest: they begin first

os.environ.setdefault("ADVISOR_STRICT", "1")  # a fault of ours is to be found here, not contained and told

# The suite draws the same examples everywhere, so that main is as green elsewhere as here; `make bench` (ADVISOR_QUIET) draws new ones.
hypothesis.settings.register_profile("suite", derandomize=True)
hypothesis.settings.register_profile("search", derandomize=False)
hypothesis.settings.load_profile("search" if os.environ.get("ADVISOR_QUIET") else "suite")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are named by their length: two workers must collect the same names, and compressed bytes carry the time they were made."""
    return f"{argname}-{len(val)}B" if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine lacks, with how to get it; the slow files first, so that two workers end at the same time."""
    items.sort(key=lambda item: next((n for n, name in enumerate(SLOW) if name in item.path.parts), len(SLOW)))
    has_torch = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("transformers") is not None
    has_browser = shutil.which("chromium") is not None and importlib.util.find_spec("playwright") is not None
    for item in items:
        if item.get_closest_marker("torch") and not has_torch:
            item.add_marker(pytest.mark.skip(reason="torch or transformers is not installed: pip install -e '.[probe]'"))
        if item.get_closest_marker("browser") and not has_browser:
            item.add_marker(pytest.mark.skip(reason="Chromium or Playwright is missing: apt-get install chromium, pip install playwright"))
