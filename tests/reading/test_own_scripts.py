"""Settings of scripts without a table of their own: what llama-cookbook's arguments mean, and strategies that are classes."""

from __future__ import annotations

import pytest

from advisor.reading import read


@pytest.mark.parametrize(
    ("flags", "kind"), [("--use_peft", "lora"), ("--use_peft --peft_method lora", "lora"), ("--use_peft --peft_method prefix", None), ("", None)]
)
def test_llama_cookbooks_arguments(flags: str, kind: str | None) -> None:
    job = read([("run.sh", f"torchrun --nproc_per_node 8 finetuning.py --enable_fsdp --pure_bf16 {flags}\n")]).job
    assert (job.parallel.strategy, job.precision.weights, job.method.kind) == ("fsdp1", "bf16", kind)


@pytest.mark.parametrize(("name", "strategy"), [("FSDPStrategy", "fsdp1"), ("FSDP2Strategy", "fsdp2")])
def test_a_strategy_that_is_a_class(name: str, strategy: str) -> None:
    assert read([("fit.py", f"import torch\nunit = MyUnit(module=net, strategy={name}(mesh))\n")]).job.parallel.strategy == strategy
