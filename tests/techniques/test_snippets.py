"""The pages' code, run on a tiny model; and the lines, taken by the libraries themselves."""

from __future__ import annotations

from typing import Any

import pytest

from advisor import knowledge
from advisor.planner.lines import SCRIPT, changed_lines
from tests.techniques.in_frameworks import applied

# transformers 5.24 renames checkpointing and takes both names until version 6; the older name is what every version takes.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")]


def code(technique: str, framework: str) -> str:
    entries = knowledge.page("techniques", technique)[0]["code"]
    return str(next(e["lines"] for e in entries if framework in e["for"] or "*" in e["for"]))


@pytest.fixture
def model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    return LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="sdpa"))


def test_skipping_the_preparation_keeps_16_bits_and_still_trains(model: Any) -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    model = model.to(torch.bfloat16)
    exec(code("keep-kbit-narrow", "trl"), {"model": model})
    model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    assert all(p.dtype == torch.bfloat16 for n, p in model.named_parameters() if "norm" in n or "embed" in n)
    tokens = torch.randint(0, 64, (1, 8))
    model.train()(input_ids=tokens, labels=tokens).loss.backward()
    assert any(p.grad is not None for n, p in model.named_parameters() if "lora_B" in n)


def test_tiles_give_the_same_numbers(model: Any) -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    tokens = torch.randint(0, 64, (1, 96))
    kind = type(model.model.layers[0].mlp)
    before, forward = model(tokens).logits, kind.forward
    try:
        exec(code("tiled-mlp", "custom"), {"model": model, "torch": torch, "checkpoint": checkpoint})
        torch.testing.assert_close(model(tokens).logits, before)
        model(input_ids=tokens, labels=tokens).loss.backward()
    finally:
        kind.forward = forward


def test_a_chunked_loss_is_the_same_loss(model: Any) -> None:
    import torch
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    tokens = torch.randint(0, 64, (2, 40))
    names = {"model": model, "input_ids": tokens, "attention_mask": None, "labels": tokens, "F": functional, "checkpoint": checkpoint}
    exec(code("chunked-loss", "custom"), names)
    torch.testing.assert_close(names["loss"], model(input_ids=tokens, labels=tokens).loss)


def test_a_step_in_the_backward_pass_leaves_no_gradient(model: Any) -> None:
    import torch

    exec(code("optimizer-in-backward", "custom"), {"model": model, "torch": torch, "learning_rate": 1e-3})
    tokens = torch.randint(0, 64, (1, 8))
    before = model.lm_head.weight.detach().clone()
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert not torch.equal(before, model.lm_head.weight)
    assert all(p.grad is None for p in model.parameters())


def test_activations_on_the_host(model: Any) -> None:
    import torch

    tokens = torch.randint(0, 64, (1, 8))
    exec(code("offload-activations", "custom"), {"model": model, "torch": torch, "batch": {"input_ids": tokens, "labels": tokens}})
    assert model.lm_head.weight.grad is not None


@pytest.mark.parametrize("framework", ["hf-trainer", "trl"])
def test_training_arguments_take_the_lines(framework: str, tmp_path: Any) -> None:
    import dataclasses

    from transformers import TrainingArguments

    known = {f.name for f in dataclasses.fields(TrainingArguments)}
    taken = 0
    for name in knowledge.page_names("techniques"):
        for before, after in applied(framework, name):
            own = [line for line in changed_lines(before, after, name).get("hf-trainer", ()) if line.partition("=")[0] in known and "(..." not in line]
            if any(line.startswith(("fsdp=", "bf16=", "use_liger", "torch_compile")) for line in own):
                continue  # need a device or a library that is not here
            values = eval(f"dict({', '.join(own)})")
            TrainingArguments(output_dir=str(tmp_path), **values)
            taken += bool(own)
            break
    assert taken or framework == "trl"


def test_lora_config_takes_the_lines() -> None:
    import peft

    for name in ("lora", "dora", "smaller-rank", "reduce-modules-to-save", "tie-embeddings"):
        for before, after in applied("hf-trainer", name):
            for line in changed_lines(before, after, name).get("peft", ()):
                if line.startswith("LoraConfig"):
                    peft.LoraConfig(**eval(line.replace("LoraConfig(..., ", "dict(")))


def test_accelerate_reads_the_files(tmp_path: Any) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    seen = 0
    for name in ("fsdp", "zero-2", "zero-3", "offload-optimizer", "offload-parameters", "sharded-save", "hybrid-shard"):
        for before, after in applied("accelerate", name):
            lines = changed_lines(before, after, name)
            if "accelerate" not in lines or lines.keys() <= {SCRIPT}:
                continue
            file = tmp_path / "config.yaml"
            file.write_text("compute_environment: LOCAL_MACHINE\nuse_cpu: false\ndebug: false\nnum_processes: 8\n" + "\n".join(lines["accelerate"]) + "\n")
            if "distributed_type" not in file.read_text():
                file.write_text(file.read_text() + "distributed_type: MULTI_GPU\n")
            load_config_from_file(str(file))
            seen += 1
    assert seen >= 4
