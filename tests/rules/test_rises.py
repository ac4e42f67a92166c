"""What a stage of preparation adds between two printed figures."""

from __future__ import annotations

from advisor.diagnosis import diagnose
from advisor.evidence import Evidence, Sample
from advisor.rules import rises
from advisor.units import MIB


def _evidence(*figures: tuple[str, int], step: int | None = None, ranks: tuple[int, ...] = ()) -> Evidence:
    made = [Sample(f"log.txt:{n}", label, step, ranks[n] if ranks else None, allocated_bytes=size * MIB) for n, (label, size) in enumerate(figures)]
    return Evidence(samples=tuple(made))


def test_a_rise_of_the_expected_size_is_told() -> None:
    evidence = _evidence(("loaded", 3838), ("prepared", 4351), ("adapters", 4400))
    assert "fp32 tables" in (rises.matching(evidence, 512 * MIB, "fp32 tables") or "")
    assert rises.matching(evidence, 300 * MIB, "fp32 tables") is None


def test_steps_other_ranks_and_falls_are_no_stages() -> None:
    assert not list(rises.rises(_evidence(("a", 100), ("b", 900), step=3)))
    assert not list(rises.rises(_evidence(("a", 100), ("b", 900), ranks=(0, 1))))
    assert not list(rises.rises(_evidence(("a", 900), ("b", 100))))


def test_a_rise_of_an_attention_is_told_in_the_nearest_whole_number_of_squares() -> None:
    text = (
        "seq_length 2048, batch 1\n[before scores] allocated: 30120.00 MB\n[after baddbmm] allocated: 30375.99 MB\n[after softmax] allocated: 30631.98 MB\n"
        "Why is it OOM when I train with Megatron on this card? It is OOM in every run.\n"
    )
    says = [says.says for finding in diagnose([("post.txt", text)]).findings for says in finding.evidence if says.mark == "attention-fallback-printed"]
    assert len(says) == 1
    assert "64 x 2,048² bytes" in says[0]
