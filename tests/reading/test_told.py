"""What reporters say of a failure in words: that it happened, and when; what they fear, ask or solved is no failure."""

import pytest

from advisor.reading import read
from advisor.reading.told import moment, states

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.27 GiB."


@pytest.mark.parametrize("sentence", [
    "At `batch_size=1` it was OOM on `optimizer.step()` every time.", "Getting CUDA OOM error when the training run starts on my card.",
    "The job ran out of GPU memory after two hours of training.", "It is giving CUDA Out Of Memory error for evaluation with batch size 4.",
])  # fmt: skip
def test_a_statement(sentence: str) -> None:
    assert states(sentence)


@pytest.mark.parametrize("sentence", [
    "Will this configuration run out of memory on one A100?", "I set expandable segments to avoid OOM in long training runs.",
    "No out of memory error is shown in the whole log of the run.", "If it goes OOM I will reduce the batch size again.",
    "How can I train this model without running out of memory?", "Lowering the batch size solved the OOM for me on this card.",
    "The loss is fine and the memory usage is stable for all epochs.", "It doesn't OOM with a batch size of one on this card.",
])  # fmt: skip
def test_what_states_no_failure(sentence: str) -> None:
    assert not states(sentence)


@pytest.mark.parametrize(("sentence", "phase"), [
    ("it was OOM on `optimizer.step()`", "step"), ("it fails when loading the checkpoint", "load"), ("for evaluation it is OOM", "eval"),
    ("OOM in the backward pass", "backward"), ("OOM during weight sync", "sync"), ("OOM while saving", "save"), ("OOM in merge_and_unload", "merge"),
    ("OOM during generation", "rollout"), ("OOM", None), ("OOM in backward and in the optimizer step", None),
])  # fmt: skip
def test_the_moment(sentence: str, phase: str | None) -> None:
    assert moment(sentence) == phase


def test_only_where_no_failure_was_pasted() -> None:
    said = "At batch_size 1 it was OOM on optimizer.step() with the same script."
    told = read([("question.txt", said)]).evidence.failure
    assert told is not None and (told.kind, told.phase, told.requested_bytes) == ("gpu-memory", "step", None)
    pasted = read([("question.txt", said), ("error.txt", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")]).evidence
    assert len(pasted.failures) == 1 and pasted.failure is not None and pasted.failure.requested_bytes == 2 << 30
    assert pasted.failure.phase == "step"  # what is said beside it fills the moment that it does not show
    assert read([("q.txt", "Will a 7B model run out of memory on this card with these settings?")]).evidence.failure is None


def test_frames_as_people_cut_them() -> None:
    text = f'{OOM}\n  ...\n  File "slime/utils/ppo_utils.py", line 219, in vocab_parallel_softmax\n    normalized_logits = logits - logits_max\n'
    failure = read([("error.txt", text)]).evidence.failure
    assert failure is not None and failure.frames[-1].function == "vocab_parallel_softmax"
    short = '  File "nemo_rl/distributed/model_utils.py", in from_parallel_logits_to_logprobs\n' + OOM
    failure = read([("error.txt", short)]).evidence.failure
    assert failure is not None and failure.frames[-1].function == "from_parallel_logits_to_logprobs"
    bare = f"[rank1]:     attn_output = F.scaled_dot_product_attention(q, k, v, mask)\n[rank1]: {OOM}\n"
    failure = read([("error.txt", bare)]).evidence.failure
    assert failure is not None and "scaled_dot_product_attention" in failure.frames[-1].code
    prose = "My model has about (7B) parameters\n" + OOM
    failure = read([("error.txt", prose)]).evidence.failure
    assert failure is not None and not failure.frames


def test_the_launcher_sets_the_world_anew() -> None:
    job = read([("cmd.sh", "WORLD_SIZE=1 CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node=4 train.py --lr 1e-4")]).job
    assert job.hardware is not None and job.hardware.gpus_per_node == 4
