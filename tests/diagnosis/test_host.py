"""What of the host ran out is told apart: /dev/shm, a signal without a reason, an engine's share of the card."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from advisor.diagnosis import diagnose, diagnose_reading
from advisor.reading import read

BUS = (
    "RuntimeError: DataLoader worker (pid 37) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. "
    "Please try to raise your shared memory limit.\n"
)
MMAP = "RuntimeError: unable to mmap 1056 bytes from file </torch_5130_2143270577_8>: Cannot allocate memory (12)\n"
NINE = "[ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py'] exits with return code = -9\n"
LONGER = (
    "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (37536). Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n"
)


@pytest.mark.parametrize("text", [BUS, MMAP, "exits with return code = -7\n"])
def test_a_full_shared_memory_is_not_called_host_ram(text: str) -> None:
    report = diagnose([("error.txt", text)])
    assert report.findings[0].cause == "host-memory"
    assert "/dev/shm" in report.sentence and "RAM" in report.findings[0].title
    lines = " ".join(line for group in report.plan.steps[0].settings.values() for line in group)
    assert "--shm-size" in lines and "--ipc=host" in lines and "num_workers=0" in lines
    assert report.next_question is None  # no setting of the job would change the answer


@pytest.mark.parametrize(
    "text",
    [
        NINE,
        "python train.py\nKilled\n",
        "RuntimeError: DataLoader worker (pid 4411) is killed by signal: Killed. \n",
        "Exited with exit code 137\n",
        "CONTAINER ID   IMAGE    CREATED       STATUS                       NAMES\nab12cd34ef56   train:1  2 hours ago   Exited (137) 5 minutes ago   sft\n",
        "sft-1 exited with code 137\n",
        "exit status 137\n",
        "make: *** [Makefile:5: train] Error 137\n",
        '"State": {\n  "Status": "exited",\n  "OOMKilled": false,\n  "ExitCode": 137,\n',
        "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.\n",
        "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).\n",
        "The training process was killed by signal 9.\n",
    ],
)
def test_a_bare_signal_9_is_not_called_sure_and_the_kernel_is_asked(text: str) -> None:
    report = diagnose([("error.txt", text)])
    top = report.findings[0]
    assert top.cause == "host-memory" and top.confidence < 0.7
    assert "surely" not in report.sentence
    assert report.next_question is not None and {a.mark for a in report.next_question.answers} == {"seen-oom-kill", "seen-no-oom-kill"}


def test_dockers_own_word_is_sure() -> None:
    assert diagnose([("inspect.json", '"State": {\n  "Status": "exited",\n  "OOMKilled": true,\n  "ExitCode": 137,\n')]).findings[0].confidence > 0.9


@pytest.mark.parametrize(
    "text", ["Exited (0) 5 minutes ago\n", "Exited (1) 2 hours ago\n", "sft-1 exited with code 0\n", "Exited (143) 2 minutes ago\n", "exit status 1\n"]
)
def test_another_end_of_a_container_is_no_memory_error(text: str) -> None:
    report = diagnose([("ps.txt", text)])
    assert report.verdict in ("unreadable", "incomplete", "not-memory") and not any(f.cause == "host-memory" for f in report.findings)


def test_a_worker_that_is_gone_was_not_said_to_be_killed() -> None:
    report = diagnose([("error.txt", "RuntimeError: DataLoader worker (pid(s) 4411, 4412) exited unexpectedly\n")])
    top = report.findings[0]
    assert report.verdict == "incomplete"
    assert top.cause == "host-memory" and top.confidence < 0.5
    assert "signal 9" not in report.sentence + top.title and "surely" not in report.sentence
    assert "num_workers=0" in str(report.plan.steps[0].settings)
    assert report.next_question is not None and {a.mark for a in report.next_question.answers} == {"seen-oom-kill", "seen-no-oom-kill"}


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: DataLoader worker (pid 4411) exited unexpectedly with exit code 1. Details are lost due to multiprocessing.\n",
        "torch.distributed.elastic.multiprocessing.api: failed (exitcode: 1) local_rank: 3 (pid: 4411) of binary: /usr/bin/python3\n",
        "[launch.py:321:sigkill_handler] ['python', 'train.py'] exits with return code = 1\n",
    ],
)
def test_an_exit_code_of_a_process_is_no_memory_error(text: str) -> None:
    report = diagnose([("error.txt", text)])
    assert report.verdict == "incomplete" and "printed before" in report.sentence
    assert not any(f.confidence >= 0.5 for f in report.findings)


def test_the_kernels_word_about_a_worker_that_is_gone() -> None:
    reading = read([("error.txt", "RuntimeError: DataLoader worker (pid(s) 4411, 4412) exited unexpectedly\n")])
    said = {
        mark: diagnose_reading(replace(reading, evidence=replace(reading.evidence, marks=(mark,)))).verdict for mark in ("seen-oom-kill", "seen-no-oom-kill")
    }
    assert said == {"seen-oom-kill": "ooms", "seen-no-oom-kill": "not-memory"}


@pytest.mark.parametrize(
    "more",
    ["kernel: Out of memory: Killed process 4411 (python3) total-vm:9kB, anon-rss:8kB\n", "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=9.0.\n"],
)
def test_signal_9_with_the_kernels_word_is_sure(more: str) -> None:
    assert diagnose([("error.txt", NINE + more)]).findings[0].confidence > 0.9


def test_a_time_limit_is_another_reason_for_signal_9() -> None:
    report = diagnose([("error.txt", "slurmstepd: error: *** JOB 4411 ON n7 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT ***\n" + NINE)])
    assert not report.findings or report.findings[0].confidence < 0.2


def test_the_answer_about_the_kernel_settles_it() -> None:
    reading = read([("error.txt", NINE)])
    said = {}
    for mark in ("seen-oom-kill", "seen-no-oom-kill"):
        report = diagnose_reading(replace(reading, evidence=replace(reading.evidence, marks=(mark,))))
        said[mark] = next((f.confidence for f in report.findings if f.cause == "host-memory"), 0.0)
    assert said["seen-oom-kill"] > 0.9 and said["seen-no-oom-kill"] < 0.1


def test_an_engine_alone_gets_an_engines_remedy() -> None:
    report = diagnose([("serve.log", LONGER)])
    first = report.plan.steps[0]
    assert report.findings[0].cause == "rollout-budget"
    assert "37,536" in first.title and first.settings["vllm"] == ("max_model_len=37536",)
    assert "larger share" in report.plan.steps[1].title
    assert "No training was read" in first.why and report.next_question is None


def test_an_engine_that_wakes_beside_a_trainer_keeps_the_trainers_remedies() -> None:
    job = ("run.sh", "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.3\n")
    report = diagnose([job, ("error.txt", LONGER)])
    assert "No training was read" not in report.plan.steps[0].why
    assert any("trainer" in line for step in report.plan.steps for group in step.settings.values() for line in group)


def test_a_failure_that_is_not_of_memory_lists_no_causes_of_memory() -> None:
    text = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, Hardware limit: 101376.\n"
    config = "args = TrainingArguments(output_dir='o', per_device_train_batch_size=8)\nmodel = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-7B')\n"
    report = diagnose([("error.txt", text), ("args.py", config)])
    assert report.verdict == "not-memory"
    assert {f.cause for f in report.findings} == {"not-memory"}
