"""Which modules are units where accelerate divides: Trainer hands it peft's own policy under FSDP1 alone."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

TWO = {"hardware": {"gpu": "a100-80gb", "gpus_per_node": 2}, "framework": {"name": "hf-trainer"}, "method": {"kind": "lora", "rank": 4, "targets": ["q_proj"]}}


def _divided(run: Any) -> Any:
    from advisor.simulation import building
    from advisor.simulation.ranks import dividing, group

    with group.opened(2, 0):
        return dividing.divided(building.build(run, "meta"), dividing.written(run), "meta")


def _units(run: Any) -> list[str]:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    from advisor.simulation import placing

    divided = _divided(run)
    whole = {placing.plain(name) for name, module in divided.named_modules() if isinstance(module, (FSDPModule, FullyShardedDataParallel))}
    return sorted(name.removeprefix("base_model.model.") for name in whole)


def test_under_fsdp2_the_blocks_are_units_and_adapters_are_within_them(tiny: Callable[..., Any]) -> None:
    found = _units(tiny("llama", **TWO, parallel={"strategy": "fsdp2", "shard": 2, "replicate": 1}))
    assert {"model.layers.0", "model.layers.1"} <= set(found)
    assert not [name for name in found if "lora" in name]


def test_under_fsdp1_each_adapter_is_a_unit_of_its_own(tiny: Callable[..., Any]) -> None:
    found = _units(tiny("llama", **TWO, parallel={"strategy": "fsdp1", "shard": 2, "replicate": 1}))
    adapters = [f"model.layers.{n}.self_attn.q_proj.lora_{side}.default" for n in range(2) for side in "AB"]
    assert {*adapters, "model.layers.0", "model.layers.1"} <= set(found)


@pytest.mark.parametrize(("stated", "reduced"), [({}, "bfloat16"), ({"reduce": "fp32"}, "float32")])
def test_gradients_are_reduced_as_the_job_states_else_as_computed(stated: dict[str, str], reduced: str, tiny: Callable[..., Any]) -> None:
    run = tiny(
        "llama",
        **{**TWO, "method": {"kind": "full"}},
        precision={"weights": "fp32", "compute": "bf16", "mixed": "fsdp", **stated},
        parallel={"strategy": "fsdp2", "shard": 2, "replicate": 1},
    )
    policy = _divided(run)._get_fsdp_state()._mp_policy
    assert (str(policy.param_dtype), str(policy.reduce_dtype)) == ("torch.bfloat16", f"torch.{reduced}")
