"""The size of a request, found again among the tensors that the run can make."""

from __future__ import annotations

import pytest

from advisor.evidence import Evidence, Failure
from advisor.job import read_job
from advisor.rules import fingerprint, tensors
from advisor.run import resolve
from advisor.units import GIB, MIB

LLAMA = {"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "batch": {"micro_batch": 6, "seq_len": 8192}}


def _kinds(size: int, job: dict[str, object], tolerance: int) -> set[str]:
    evidence = Evidence(failures=(Failure("gpu-memory", "error.txt:1", "", requested_bytes=size, tolerances=(("requested", tolerance),)),))
    return {m.candidate.kind for m in fingerprint.matches(resolve(read_job(job), evidence), evidence)}


@pytest.mark.parametrize(
    ("elements", "width", "kind"),
    [(6 * 8192 * 128256, 4, "logits"), (6 * 8191 * 128256, 4, "logits"), (6 * 8192 * 14336, 2, "mlp"), (6 * 32 * 8192 * 8192, 2, "attention")],
)
def test_a_tensor_is_found_by_its_printed_size(elements: int, width: int, kind: str) -> None:
    """As c10 prints it: rounded up to 2 MiB, then to two decimals of a GiB."""
    rounded = tensors.rounded(elements * width)
    printed = round(round(rounded / GIB, 2) * GIB)
    assert kind in _kinds(printed, LLAMA, round(0.005 * GIB))


def test_a_segment_matches_nothing() -> None:
    assert not _kinds(20 * MIB, LLAMA, MIB // 200)


def test_tokens_are_solved_for_where_they_are_not_known() -> None:
    job = {"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "batch": {"micro_batch": 5}}
    printed = round(round(tensors.rounded(5 * 4096 * 128256 * 4) / GIB, 2) * GIB)
    evidence = Evidence(failures=(Failure("gpu-memory", "error.txt:1", "", requested_bytes=printed, tolerances=(("requested", round(0.005 * GIB)),)),))
    run = resolve(read_job(job), evidence)
    found = [m for m in fingerprint.matches(run, evidence) if m.candidate.kind == "logits"]
    assert 5 * 4096 in {m.solved_tokens for m in found} or any(m.solved_tokens is None for m in found)
