"""A checkpoint that recomputes something else, or other gradients, is found with its line; a true one is quiet, and nothing of the run is changed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from advisor.measurement.watching import checkpointed, replaying  # noqa: E402

Ask = Callable[[str], dict[str, Any]]
RUNS = Path(__file__).with_name("checkpointed_runs.py")
CLEAN = sorted(re.findall(r"^def (clean_\w+)", RUNS.read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", [*CLEAN, "nothing_is_left_behind"])
def test_a_true_recomputation_is_quiet(ask: Ask, name: str) -> None:
    answer = ask(f"checkpointed_runs.{name}")
    assert "raised" not in answer, answer["raised"]
    assert answer.get("findings", []) == []


@pytest.mark.parametrize(("name", "marker"), [("mutated_buffer", "buffer"), ("nondeterministic", "noise"), ("lost_gradient", "gradient")])
def test_other_gradients_are_found(ask: Ask, name: str, marker: str) -> None:
    answer = ask(f"checkpointed_runs.{name}")
    assert "raised" not in answer, answer["raised"]
    (line,) = (n for n, text in enumerate(RUNS.read_text().splitlines(), 1) if text.endswith(f"# FAULT {marker}"))
    found = answer["findings"]
    assert {kind for kind, _, _ in found} == {"checkpoint-differs"}
    assert {where.rpartition("/")[2] for _, where, _ in found} == {f"checkpointed_runs.py:{line}"}
    assert all(" gradients come out wrong" in title for _, _, title in found)


def test_another_dropout_mask_without_the_replay_is_found_too(ask: Ask) -> None:
    answer = ask("checkpointed_runs.dropout_state")
    assert "raised" not in answer, answer["raised"]
    assert all("first at bernoulli_: " in title and "gradients come out wrong" in title for _, _, title in answer["findings"]) and answer["findings"]


def seen_by(block: "torch.nn.Module", *args: Any, **options: Any) -> Any:
    """What a hook on the block learns of the checkpoint around it."""
    calls: list[Any] = []
    with block.register_forward_pre_hook(lambda *_: calls.append(checkpointed.running())):
        checkpoint(block, *args, **options) if options else block(*args)
    return calls[0]


def test_the_call_is_read_from_torchs_frame_without_its_graph() -> None:
    block, given = torch.nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True) * 2
    assert seen_by(block, given) is None
    for reentrant in (True, False):
        call = seen_by(block, given, use_reentrant=reentrant, preserve_rng_state=False)
        assert call.function is block and call.options["use_reentrant"] is reentrant and call.options["preserve_rng_state"] is False
        (tensor,) = call.tensors()
        assert tensor.requires_grad and tensor.grad_fn is None and tensor.data_ptr() == given.data_ptr() and not call.selective


def test_what_needs_more_than_the_step_had_is_not_run_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "ALLOWED", 1000)
    block = torch.nn.Linear(4, 4)
    call = seen_by(block, torch.ones(2, 4, requires_grad=True), use_reentrant=False)
    need = 2 * (32 + 80) + 4 * 32  # what it makes and its gradients, twice; its inputs
    assert replaying.replay(call, block, block, name="block", made=32, room=0).bytes == need
    with pytest.raises(checkpointed.Unfit, match="are left below the step's peak"):
        replaying.replay(call, block, block, name="block", made=32 * 1000, room=2000)
    assert block.weight.grad is None


@pytest.mark.parametrize("factor", [1.0, 1 + 1e-7, 1.01])
def test_rounding_is_no_difference(factor: float) -> None:
    kept = {"weight": torch.tensor([1.0, -3.0]), "frozen": None}
    differs, exact = replaying._compared(kept, {"weight": kept["weight"] * factor, "frozen": None})
    assert exact is (factor == 1.0)
    assert list(differs) == (["weight"] if factor == 1.01 else [])
    assert replaying._compared(kept, {"weight": None, "frozen": None}) == ({"weight": 1.0}, False)
