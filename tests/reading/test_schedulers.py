"""Jobs that a scheduler ended for its own reason."""

import pytest

from advisor.diagnosis import diagnose


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("slurmstepd: error: *** JOB 123456 ON node042 CANCELLED AT 2026-05-03T11:00:12 DUE TO TIME LIMIT ***", "time limit"),
        ("slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-05-03T11:00:12 DUE TO PREEMPTION ***", "preemption"),
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.", "term_runlimit"),
        ("=>> PBS: job killed: walltime 3610 exceeded limit 3600", "walltime"),
    ],
)
def test_the_schedulers_own_reason_is_no_memory_error(text: str, reason: str) -> None:
    report = diagnose([("slurm.out", "epoch 3 loss 1.2\n" + text + "\n")])
    assert report.verdict == "not-memory"
    assert reason in report.sentence


def test_beside_a_memory_error_it_is_no_failure_of_its_own() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    report = diagnose([("slurm.out", f"{oom}\nslurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-05-03T11:00:12 DUE TO TIME LIMIT ***\n")])
    assert report.verdict == "ooms"
