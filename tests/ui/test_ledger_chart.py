"""The chart of the ledger: what is drawn as an outline is said to be one, in the bars and in the legend."""

from advisor.arithmetic import estimate
from advisor.evidence import Evidence
from advisor.job import read_job
from advisor.render import words
from advisor.run import resolve
from advisor.views.ledger_chart import specification

JOB = {
    "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "full"}, "objective": "sft",
    "batch": {"micro_batch": 2, "seq_len": 4096}, "hardware": {"gpu": "a100-80gb"}, "parallel": {"strategy": "fsdp2", "shard": 8},
}  # fmt: skip


def test_the_cache_is_an_outline_in_the_legend_as_in_the_bars() -> None:
    ledger = estimate(resolve(read_job(JOB), Evidence()))
    assert ledger.outside("allocator"), "this run has a cache to draw"
    colour = specification(ledger, None)["layer"][0]["encoding"]["color"]
    colours = dict(zip(colour["scale"]["domain"], colour["scale"]["range"], strict=True))
    cache = words.part("allocator")
    assert colours[words.part("weights")] == words.colour("weights")
    assert colours[cache] not in {words.colour(part) for part in ("allocator", "workspace", "communication")}
    assert "(outline)" in colour["legend"]["labelExpr"] and cache in colour["legend"]["labelExpr"]
    assert colour["legend"]["symbolStrokeWidth"] > 0, "the outline is seen in the legend"
