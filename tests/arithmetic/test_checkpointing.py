"""What a block leaves behind where only some of it is recomputed."""

from __future__ import annotations

from advisor.arithmetic import estimate
from tests.arithmetic.jobs import TINY, job


def test_modules_each_in_a_wrapper_of_its_own_keep_their_inputs() -> None:
    """NeMo Automodel before 0.5: attention, MLP and both norms are wrapped one by one, so that four tensors of the hidden size stay of a layer."""
    ops = {"checkpointing": "selective", "selective": {"ops": ["self_attn", "mlp"]}, "kernels": ["rmsnorm", "swiglu", "rope"]}
    held = [h for h in estimate(job(activations=ops)).holdings if h.part == "activations" and h.moments >= {"forward.blocks", "loss.backward"}]
    blocks = [h for h in held if h.values.get("layers") == TINY["num_hidden_layers"]]
    statistics = 2 * 4 * TINY["num_hidden_layers"] * 1024  # one fp32 a token and norm
    assert sum(h.bytes for h in blocks) == TINY["num_hidden_layers"] * 1024 * 4 * TINY["hidden_size"] * 2 + statistics
