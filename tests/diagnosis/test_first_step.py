"""What is still there in the first step, what a library's handle says, and a log that goes on with room to spare."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.rules.samples import oom, trace

FORWARD = trace("net.py|forward|x = self.conv(x)") + oom("38.00 MiB", allocated=14.6, capacity=15.78)
LOADS = "weights = torch.load(args.init{})\nnet.load_state_dict(weights['net'])\noptimizer.load_state_dict(weights['optim'])\n"


@pytest.mark.parametrize(
    ("script", "command", "first"),
    [
        (LOADS.format(""), "$ python fit.py --resume-from runs/3/last.pt", True),
        (LOADS.format(", map_location='cpu'"), "$ python fit.py --resume-from runs/3/last.pt", False),
        (LOADS.format(""), "$ python fit.py", False),
    ],
)
def test_a_state_read_onto_the_card_is_there_in_the_first_step(script: str, command: str, first: bool) -> None:
    report = diagnose([("fit.py", script), ("cmd.txt", command + "\n"), ("error.txt", FORWARD)])
    assert ([f.cause for f in report.findings][:1] == ["resume-on-device"]) is first


@pytest.mark.parametrize("call", ["CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate`"])
def test_a_library_without_its_handle_says_that_the_card_was_full_and_asks(call: str) -> None:
    report = diagnose([("error.txt", trace("torch/nn/modules/linear.py|forward|return F.linear(input, w, b)") + f"RuntimeError: CUDA error: {call}\n")])
    assert report.verdict == "ooms"
    assert "the card was full before" in report.sentence
    assert report.next_question is not None


@pytest.mark.parametrize(("step", "peak", "verdict"), [(40, 21.5, "fits"), (2, 21.5, "incomplete"), (40, 71.0, "incomplete")])
def test_a_log_that_goes_on_with_half_of_the_card_free_fits(step: int, peak: float, verdict: str) -> None:
    log = f"NVIDIA A100-SXM4-80GB\nstep {step} loss 1.2 peak memory {peak} GiB\n"
    assert diagnose([("log.txt", log), ("train.yaml", "model_name_or_path: Qwen/Qwen2.5-7B\n")]).verdict == verdict
