"""Two tries of one switch in a log: settings and commands above, figures beside them or below."""

from __future__ import annotations

import pytest

from advisor.evidence import Evidence, Line
from advisor.rules import tabled
from advisor.units import GIB

CHECKPOINTING = r"\w*(?:gradient|activation)s?_?checkpointing|recompute"
NARROW = (r"(?:use_|enable_)?(?:fp8|float8)", "fp8|float8")


def _evidence(text: str) -> Evidence:
    return Evidence(lines=tuple(Line(f"log.txt:{n}", line) for n, line in enumerate(text.split("\n"), 1)))


@pytest.mark.parametrize(
    ("text", "switch", "on", "off"),
    [
        (
            "trial 1 model.enable_activation_checkpointing=False micro=2\n  max memory allocated (GB): 40.25\n"
            "trial 2 model.enable_activation_checkpointing=True micro=2\n  max memory allocated (GB): 22.5",
            (CHECKPOINTING,),
            22.5,
            40.25,
        ),
        (
            "> ./run_train.sh --training.compile\nstep: 20  loss: 8.4  memory: 31.65GiB(40.16%)\n"
            "> ./run_train.sh --model.converters float8 --training.compile\nstep: 20  loss: 8.4  memory: 31.90GiB(40.28%)",
            NARROW,
            31.9,
            31.65,
        ),
        ('without `converters = ["float8"]`\nstep: 9 memory: 20.5GiB(26%)\nwith `converters = ["float8"]`\nstep: 9 memory: 21.0GiB(27%)', NARROW, 21.0, 20.5),
    ],
)
def test_both_runs_are_found(text: str, switch: tuple[str, ...], on: float, off: float) -> None:
    both = tabled.pair(_evidence(text), *switch)
    assert both is not None
    assert (both.on.memory, both.off.memory) == (round(on * GIB), round(off * GIB))


@pytest.mark.parametrize(
    "text",
    [
        "gradient_checkpointing=False batch=4\npeak 40.1 GB\ngradient_checkpointing=True batch=8\npeak 40.0 GB",
        "gradient_checkpointing=True\npeak 40.1 GB\nlater 40.2 GB",
        "gradient_checkpointing=False\ngradient_checkpointing=True\npeak 40.1 GB",
    ],
    ids=["another setting differs", "one run", "one has no figure"],
)
def test_what_is_not_comparable(text: str) -> None:
    assert tabled.pair(_evidence(text), CHECKPOINTING) is None
