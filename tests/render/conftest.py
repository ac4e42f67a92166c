# ruff: noqa: E501  hand-made data reads better in one line
"""A report made by hand, with every kind of entry, on a ledger of the real arithmetic."""

import pytest

from advisor.arithmetic import estimate
from advisor.evidence import Conflict, Evidence, Fact, Failure, NotUnderstood, Source
from advisor.job import read_job
from advisor.report import CouldNotTell, Finding, Plan, Question, Report, Says, Step
from advisor.run import resolve
from advisor.units import GIB

NASTY = "**bold** <script>alert(1)</script> | $x$ [a](javascript:b)"


@pytest.fixture
def report() -> Report:
    run = resolve(read_job({"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "full"}, "batch": {"micro_batch": 4, "seq_len": 4096}, "hardware": {"gpu": "a10-24gb"}}))  # fmt: skip
    ledger = estimate(run)
    evidence = Evidence(
        failures=(
            Failure("gpu-memory", "error.txt:14", NASTY, rank=3, requested_bytes=2 * GIB, allocated_bytes=20 * GIB, free_bytes=GIB, capacity_bytes=23 * GIB),
        )
    )
    first = Finding(
        "logits", "batch", "The logits and their loss are the peak", 0.87, 7 * GIB,
        (Says(NASTY, "error.txt:14", True, 2.3, "m", "transformers 4.45"), Says("the request is no logits tensor", None, False, -1.0, "n", "shape")), ("fused-linear-loss",),
    )  # fmt: skip
    step = Step(
        "fused-linear-loss",
        "Compute the loss part by part",
        "batch",
        True,
        31 * GIB,
        24 * GIB,
        1.0,
        True,
        {"trl": ("use_liger_kernel=True",)},
        "the logits are the peak",
        True,
    )
    action = Step("upgrade", "Upgrade the library", "fallback", False, None, None, None, True, {}, "", None)
    assumed = Fact("activations.attention", "sdpa", "assumed", why="nothing names a kernel")
    return Report(
        verdict="ooms", sentence="It needs 31.2 GiB at the loss (estimated), 7.6 GiB more than the 23.6 GiB usable.", phase="loss", rank=3, findings=(first,),
        plan=Plan((step, action), True, "One change makes it fit.", (step,), (step,)), next_question=Question("batch.seq_len", "How long are the sequences?", 9 * GIB, (1024, 4096)),
        cleared=(("fragmentation", "Little is reserved and unused"),), not_applicable=(("reference-copy", "no preference objective"),),
        could_not_tell=(CouldNotTell("padding", "needs lengths"),), run=run, ledger=ledger, as_written=None, evidence=evidence, assumed=(assumed,),
        read=(Fact("batch.seq_len", 4096, "read", where="args.py:3", text=NASTY),), conflicts=(Conflict("batch.micro_batch", assumed, assumed),),
        not_understood=(NotUnderstood("config.yaml:3", NASTY, "not known"),), sources=(Source("error.txt", "pytorch error", 900),),
        capacity_bytes=round(23.6 * GIB), capacity_why="what torch reports", notes=("a note",),
    )  # fmt: skip
