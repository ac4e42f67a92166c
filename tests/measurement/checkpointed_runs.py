"""Tiny checkpointed runs, with one fault planted at a line marked FAULT or with none; :mod:`forking` runs each in a process of its own."""

import random
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from advisor.measurement import watch
from advisor.measurement.watching.session import Watch

WIDTH, STEPS = 16, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.2, self.training)


class Normed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)  # type: ignore[assignment]


class Fading(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("strength", torch.ones(()))

    def forward(self, x):  # type: ignore[no-untyped-def]
        self.strength.mul_(0.5)
        return super().forward(x * self.strength)  # FAULT buffer


class Noisy(Block):
    def forward(self, x):  # type: ignore[no-untyped-def]
        return super().forward(x * (1 + random.random()))  # FAULT noise


class Losing(Block):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x):  # type: ignore[no-untyped-def]  # FAULT gradient
        self.calls += 1
        hidden = self.norm(x)
        return x + self.down(F.gelu(self.up(hidden.detach() if self.calls % 2 == 0 else hidden)))


class Recording(Block):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, x):  # type: ignore[no-untyped-def]
        self.calls.append(len(self.calls))
        self.last = len(self.calls)
        return super().forward(x)


class Own:
    """What no second run can be given safely."""


class Given(Block):
    def forward(self, x, given):  # type: ignore[no-untyped-def]
        del given
        return super().forward(x)


class Model(nn.Module):
    def __init__(self, block=Block, *, given=(), closed=False, **options) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(WIDTH, WIDTH), nn.ModuleList(block() for _ in range(2)), nn.Linear(WIDTH, 1)
        self.given, self.closed, self.options = given, closed, {"use_reentrant": False, **options}

    def forward(self, x):  # type: ignore[no-untyped-def]
        x = self.first(x)
        for block in self.blocks:
            if self.closed:
                x = checkpoint(lambda weight, x=x, block=block: self._bound(block, x)(), x, **self.options)
            else:
                x = checkpoint(block, x, *self.given, **self.options)
        return self.last(x)

    def _bound(self, block, x):  # type: ignore[no-untyped-def]
        return partial(block, x)


def trained(model: nn.Module, watched: bool = True, runs: nn.Module | None = None) -> tuple[Watch | None, list[float]]:
    """The watch, and the losses of all steps."""
    torch.manual_seed(1)
    random.seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses: list[float] = []

    def loop() -> None:
        for _ in range(STEPS):
            loss = (runs or model)(torch.randn(8, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            losses.append(loss.item())

    if not watched:
        loop()
        return None, losses
    with watch(model, optimizer, checkpointing=False) as seen:
        loop()
    return seen, losses


def compared(seen: Watch | None, why: str | None = None) -> Watch:
    """The watch, which must have compared gradients, or said why it has not."""
    assert seen is not None and seen.failed is None
    assert (why is None) is (not seen.not_compared), seen.not_compared
    assert why is None or any(why in reason for reason in seen.not_compared), seen.not_compared
    return seen


def clean_dropout() -> Watch:
    return compared(trained(Model())[0])


def clean_reentrant() -> Watch:
    return compared(trained(Model(use_reentrant=True))[0])


def clean_batch_norm() -> Watch:
    seen = compared(trained(Model(Normed))[0])
    assert [note.name for note in seen.notes] == ["blocks.0.norm.running_mean", "blocks.1.norm.running_mean"]
    return seen


def clean_selective() -> Watch:
    def keeps(context, operator, *args, **kwargs):  # type: ignore[no-untyped-def]
        return CheckpointPolicy.MUST_SAVE if operator is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    return compared(trained(Model(context_fn=partial(create_selective_checkpoint_contexts, keeps)))[0])


def clean_autocast() -> Watch:
    model = Model()

    class Cast(nn.Module):
        def forward(self, x):  # type: ignore[no-untyped-def]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return model(x).float()

    seen = compared(trained(model, runs=Cast())[0])
    assert all(f.kind == "framework-upcast" for f in seen.findings)  # as autocast does
    seen.findings.clear()
    return seen


def clean_wrapped() -> Watch:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return compared(trained(nn.Sequential(*(checkpoint_wrapper(Block()) for _ in range(2)), nn.Linear(WIDTH, 1)))[0])


def clean_own_hooks() -> Watch:
    model = Model()
    model.blocks[0].down.register_forward_hook(lambda *_: None)
    return compared(trained(model)[0], "down (Linear) has hooks")


def clean_given_an_object() -> Watch:
    return compared(trained(Model(Given, given=(Own(),)))[0], "given a Own")


def clean_closure() -> Watch:
    return compared(trained(Model(closed=True))[0], "from the function around it")


def clean_ddp() -> Watch:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = Model()
    reduced: list[int] = []
    whole = nn.parallel.DistributedDataParallel(model)
    whole.register_comm_hook(reduced, _reduce)
    seen = compared(trained(model, runs=whole)[0])
    assert len(reduced) == STEPS  # one bucket a step, and none for what was run once more
    return seen


def _reduce(reduced: list[int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    reduced.append(bucket.index())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def clean_fsdp() -> Watch:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, mesh = Model(), init_device_mesh("cpu", (1,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return compared(trained(model)[0], "FSDP divides")


def nothing_is_left_behind() -> None:
    ends = []
    for watched in (False, True):
        torch.manual_seed(0)
        inner = Model(Recording)
        inner.blocks.append(Normed())
        _, losses = trained(inner, watched)
        ends.append(
            (losses, {n: v.clone() for n, v in inner.state_dict().items()}, [b.calls for b in inner.blocks[:2]], inner.blocks[0].last, torch.get_rng_state())
        )
        assert not any(module._forward_pre_hooks for module in inner.modules())
    (losses, state, calls, last, rng), other = ends[0], ends[1]
    assert losses == other[0] and (calls, last) == other[2:4]
    assert all(torch.equal(value, other[1][name]) for name, value in state.items())
    assert torch.equal(rng, other[4])


def mutated_buffer() -> Watch:
    return compared(trained(Model(Fading))[0])


def nondeterministic() -> Watch:
    return compared(trained(Model(Noisy))[0])


def lost_gradient() -> Watch:
    return compared(trained(Model(Losing, use_reentrant=True))[0])


def dropout_state() -> Watch:
    return compared(trained(Model(use_reentrant=True, preserve_rng_state=False))[0])
