"""Frames of plain, notebook and boxed tracebacks; phases; interleaved ranks; chained exceptions."""

from __future__ import annotations

import pytest

from advisor.evidence import Frame
from advisor.reading import read
from advisor.reading.phase import phase_of
from advisor.reading.tracebacks import package_path
from reading.failure_texts import VERSIONS

FAILURE = VERSIONS["2.5"]


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/opt/conda/lib/python3.10/site-packages/transformers/trainer.py", "transformers/trainer.py"),
        ("/home/alice/LLaMA-Factory/src/llamafactory/train/sft/workflow.py", "llamafactory/train/sft/workflow.py"),
        ("/workspace/verl/verl/workers/fsdp_workers.py", "verl/workers/fsdp_workers.py"),
        ("/usr/lib/python3.11/threading.py", "threading.py"),
        ("/home/alice/secret-project/train.py", "train.py"),
        (r"C:\Users\alice\env\Lib\site-packages\torch\nn\modules\module.py", "torch/nn/modules/module.py"),
    ],
)
def test_files_start_at_their_package(path: str, short: str) -> None:
    assert package_path(path) == short


def test_plain_frames_with_code_and_carets() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/x/site-packages/transformers/trainer.py", line 3736, in training_step\n    '
        "self.accelerator.backward(loss)\n"
        '    ~~~~~~~~~~~~~~~~~~~~~~~~~^^^^^^\n  File "/x/site-packages/torch/_tensor.py", line 581, in backward\n    torch.autograd.backward(\n' + FAILURE
    )
    failure = read([("e.txt", text)]).evidence.failure
    assert failure is not None and failure.phase == "backward"
    assert [(f.file, f.line, f.function, f.code) for f in failure.frames] == [
        ("transformers/trainer.py", 3736, "training_step", "self.accelerator.backward(loss)"),
        ("torch/_tensor.py", 581, "backward", "torch.autograd.backward("),
    ]
    assert failure.frames[0].where == "e.txt:2"


def test_notebook_frames() -> None:
    text = (
        "---------------------------------------------------------------------------\nOutOfMemoryError                          Traceback (most "
        "recent call last)\n"
        "Cell In[12], line 3\n      1 x = 1\n----> 3 trainer.train()\n\n"
        "File /opt/conda/lib/python3.10/site-packages/torch/optim/adamw.py:173, in AdamW.step(self, closure)\n    172 def step\n--> 173     "
        "self._init_group(\n\n" + FAILURE
    )
    failure = read([("e.txt", text)]).evidence.failure
    assert failure is not None and failure.phase == "step"
    assert [f.file for f in failure.frames] == ["notebook cell 12", "torch/optim/adamw.py"]
    assert failure.frames[1].code == "self._init_group("


def test_old_notebook_and_boxed_frames() -> None:
    old = (
        "/usr/local/lib/python3.7/dist-packages/torch/nn/functional.py in cross_entropy(input, target)\n   2995 \n-> 2996     return "
        "torch._C._nn.cross_entropy_loss(\n\n" + FAILURE
    )
    failure = read([("e.txt", old)]).evidence.failure
    assert failure is not None and failure.frames[0].file == "torch/nn/functional.py" and failure.phase == "forward"
    assert dict(failure.details)["inside"] == "loss"
    boxed = (
        "╭───────────────────── Traceback (most recent call last) ──────────────────────╮\n│ "
        "/usr/lib/python3.10/site-packages/torch/autograd/__init__.py:200 in backward │\n"
        "│                                                                              │\n│ ❱ 200 │   Variable._execution_engine.run_backward(   "
        "                        │\n"
        "╰──────────────────────────────────────────────────────────────────────────────╯\n" + FAILURE
    )
    failure = read([("e.txt", boxed)]).evidence.failure
    assert failure is not None and [f.file for f in failure.frames] == ["torch/autograd/__init__.py"] and failure.phase == "backward"


def test_ranks_that_interleave_are_kept_apart() -> None:
    ranks = []
    for rank, function in ((0, "alpha"), (1, "beta")):
        ranks.append(
            [
                f"[rank{rank}]: {line}"
                for line in (
                    "Traceback (most recent call last):",
                    f'  File "t.py", line 1, in {function}',
                    "    call()",
                    *FAILURE.replace("GPU 1", f"GPU {rank}").split("\n"),
                )
            ]
        )
    text = "\n".join(line for pair in zip(*ranks, strict=True) for line in pair)
    failures = read([("e.txt", text)]).evidence.failures
    assert [(f.rank, f.gpu, [x.function for x in f.frames]) for f in failures] == [(0, 0, ["alpha"]), (1, 1, ["beta"])]


def test_a_chained_exception_keeps_the_memory_failure_first() -> None:
    text = (
        'Traceback (most recent call last):\n  File "t.py", line 1, in inner\n    step()\n'
        + FAILURE
        + "\n\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "t.py", line 9, in outer\n    run()\nValueError: could not run\n'
    )
    failures = read([("e.txt", text)]).evidence.failures
    assert [f.kind for f in failures] == ["gpu-memory", "not-memory"]
    assert [x.function for x in failures[0].frames] == ["inner"] and failures[1].consequence


def test_another_exception_is_not_memory() -> None:
    text = (
        'Traceback (most recent call last):\n  File "t.py", line 1, in forward\n    F.linear(x)\nRuntimeError: mat1 and mat2 shapes cannot be '
        "multiplied (4096x2048 and 4096x4096)\n"
    )
    failure = read([("e.txt", text)]).evidence.failure
    assert failure is not None and failure.kind == "not-memory" and "mat1" in failure.text


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        ((("transformers/trainer.py", "evaluate", ""), ("transformers/trainer_pt_utils.py", "nested_concat", "torch.cat(")), "eval"),
        (
            (("transformers/trainer.py", "_save_checkpoint", "self.save_model("), ("deepspeed/runtime/engine.py", "_zero3_consolidated_16bit_state_dict", "")),
            "save",
        ),
        ((("accelerate/accelerator.py", "load_state", "load_accelerator_state("), ("torch/serialization.py", "load", "")), "resume"),
        ((("train.py", "<module>", "AutoModelForCausalLM.from_pretrained("), ("torch/nn/modules/module.py", "convert", "return t.to(")), "load"),
        (
            (
                ("deepspeed/__init__.py", "initialize", "engine = DeepSpeedEngine("),
                ("deepspeed/runtime/zero/stage3.py", "initialize_optimizer_states", "self._optimizer_step(i)"),
            ),
            "load",
        ),
        ((("transformers/trainer.py", "training_step", "self.accelerator.backward(loss)"), ("torch/autograd/__init__.py", "backward", "")), "backward"),
        ((("torch/autograd/graph.py", "_engine_run_backward", ""), ("transformers/models/llama/modeling_llama.py", "forward", "x = self.mlp(x)")), "backward"),
        ((("transformers/trainer.py", "_inner_training_loop", "self.optimizer.step()"), ("torch/optim/adamw.py", "_multi_tensor_adamw", "")), "step"),
        ((("vllm/device_allocator/cumem.py", "wake_up", "create_and_map(handle)"),), "sync"),
        ((("trl/trainer/grpo_trainer.py", "_generate_and_score_completions", ""), ("transformers/generation/utils.py", "generate", "")), "rollout"),
        ((("peft/tuners/lora/model.py", "merge_and_unload", ""),), "merge"),
        ((("train.py", "main", "x = 1"),), None),
    ],
)
def test_phases(frames: tuple[tuple[str, str, str], ...], phase: str | None) -> None:
    found = phase_of([Frame("e:1", file, 1, function, code) for file, function, code in frames])
    assert (found[0] if found else None) == phase
