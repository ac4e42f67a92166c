"""Several runs in one text, bare exceptions, and one model under two spellings."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read

FIRST = "python train_cls.py --model bert-large-uncased --per_device_train_batch_size 64 --max_seq_length 512 --fp16"
SECOND = "python train_cls.py --model bert-large-uncased --per_device_train_batch_size 8 --max_seq_length 512 --fp16"
OOM = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 15.90 GiB total capacity; 14.01 GiB already allocated; "
    "411.75 MiB free; 14.50 GiB reserved in total by PyTorch)"
)
SHAPE = "RuntimeError: The size of tensor a (530) must match the size of tensor b (512) at non-singleton dimension 1"


def paste(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_what_failed_is_read_with_its_own_command() -> None:
    reading = read([("log.txt", paste("== run A", FIRST, OOM, "", "== run B", SECOND, SHAPE, "Why?"))])
    assert (reading.job.batch.micro_batch, reading.job.batch.seq_len) == (64, 512)
    (other,) = reading.evidence.not_understood
    assert other.where == "log.txt:6" and "no memory error" in other.why and "log.txt:7" in other.why


def test_a_later_try_that_fails_too_is_told() -> None:
    second = OOM.replace("14.01", "13.10")
    reading = read([("log.txt", paste(FIRST, OOM, SECOND, second))])
    assert reading.job.batch.micro_batch == 64
    assert "runs out of memory too" in reading.evidence.not_understood[0].why


@pytest.mark.parametrize(
    "lines",
    [
        (FIRST, SECOND, OOM),  # both above the error: the last one failed
        (OOM, SECOND),  # the error first, then how it was started
        (FIRST.replace("train_cls", "prepare"), OOM, SECOND),  # another program
    ],
)
def test_otherwise_the_last_command_counts(lines: tuple[str, ...]) -> None:
    assert read([("log.txt", paste(*lines))]).job.batch.micro_batch == 8


def test_a_key_that_is_given_twice_is_understood() -> None:
    assert not read([("log.txt", paste(FIRST, SECOND, OOM))]).evidence.not_understood


@pytest.mark.parametrize(("one", "other", "differ"), [("bert-large-uncased", "google-bert/bert-large-uncased", 0), ("gpt2", "openai-community/gpt2-medium", 1)])
def test_two_spellings_of_one_model_do_not_disagree(one: str, other: str, differ: int) -> None:
    texts = [("a.sh", f"python run_clm.py --model_name_or_path {one}\n"), ("b.sh", f"python run_clm.py --model_name_or_path {other}\n")]
    assert sum(conflict.field == "model.name" for conflict in read(texts).evidence.conflicts) == differ


@pytest.mark.parametrize(
    "text",
    [
        "ImportError: cannot import name 'is_flash_attn_available' from 'transformers.utils' (/opt/conda/lib/python3.10/site-packages/transformers/utils)\n",
        "[rank0]: ValueError: Unable to create tensor, you should probably activate truncation\n",
        "KeyError: 'labels'\n",
    ],
)
def test_an_exceptions_line_alone_is_no_memory_error(text: str) -> None:
    report = diagnose([("log.txt", text)])
    assert report.verdict == "not-memory" and report.findings[0].cause == "not-memory"


@pytest.mark.parametrize("text", ["Some Error: it fails\n", "UserWarning: the tokenizer has no pad token\n", f"{OOM}\n"])
def test_what_is_no_bare_exception(text: str) -> None:
    assert all(failure.kind != "not-memory" for failure in read([("log.txt", text)]).evidence.failures)


@pytest.mark.parametrize("mark", ["# ", "#", "// ", "> "])
def test_a_traceback_in_comments_keeps_its_moment(mark: str) -> None:
    trace = (
        '  File "train.py", line 1288, in main',
        "    optimizer.step()",
        '  File "/opt/lib/python3.10/site-packages/torch/optim/adamw.py", line 599, in _multi_tensor_adamw',
        OOM,
    )
    command = "accelerate launch train.py --train_batch_size=1 --mixed_precision=fp16"
    (failure,) = read([("run.sh", paste(command, "# an RTX 3060", *(mark + line for line in trace)))]).evidence.failures
    assert [frame.function for frame in failure.frames] == ["main", "_multi_tensor_adamw"] and failure.phase == "step"
    assert failure.frames[0].code == "optimizer.step()"


def test_a_comment_stays_a_comment() -> None:
    assert not read([("run.sh", "python train.py --lr 1\n# ValueError: is raised without --lr\n#     old_call()\n")]).evidence.failures
