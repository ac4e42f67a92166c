"""Tests of what looks at everything alive, or breaks the collector's habits: :mod:`forking` runs each in a process that has little else."""

import gc
import sys
import weakref

import torch

from advisor.measurement import watch
from advisor.measurement.watching import living


def new_tensors_are_found_without_a_look_at_every_object() -> None:
    look = living.Living()
    first = {id(t) for t in look.tensors()}
    gc.collect()  # as if a collection had come between: everything is looked at
    kept = [torch.zeros(3) for _ in range(5)]
    assert {id(t) for t in kept} <= {id(t) for t in look.tensors()}
    gc.disable()
    try:
        late = torch.ones(2, requires_grad=True)
        del kept[1:]
        found = look.tensors()
        assert {id(late), id(kept[0])} <= {id(t) for t in found}
        assert {id(t) for t in found} == {id(t) for t in living.Living().tensors()}
        assert len(found) == len({id(t) for t in found}) <= len(first) + 2
        assert sys.getrefcount(late) <= 4  # it keeps nothing alive: the name, the list above, the call
    finally:
        gc.enable()


def between_looks_that_come_soon_no_collection_hides_a_tensor() -> None:
    look = living.Living()
    look.tensors(soon=True)
    kept = torch.zeros(3)
    dead = torch.zeros(4)
    gc.collect()  # both are old now
    late = torch.ones(2)
    del dead
    gc.collect(1)
    found = {id(t) for t in look.tensors(soon=True)}
    assert {id(kept), id(late)} <= found
    assert found == {id(t) for t in living.Living().tensors()}
    for _ in range(living.MOST_HEARD + 1):
        gc.collect(1)
    assert gc.callbacks.count(look._collecting) == 0  # a step without end is not made slower
    last = torch.ones(5)
    gc.collect()
    assert id(last) in {id(t) for t in look.tensors()}
    assert gc.callbacks.count(look._collecting) == 0


def _gradients(early: bool) -> None:
    model = torch.nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    with watch(model, optimizer) as seen:
        for _ in range(4):
            loss = model(torch.randn(2, 64)).square().mean()
            if early:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not early:
                optimizer.zero_grad()
    size = 4 * 64 * 64
    assert size <= seen.peaks["backward"][1]["gradients"] < 2 * size
    assert (seen.peaks["forward"][1].get("gradients", 0) == size) is early  # they are there while it runs forward


def gradients_freed_early_are_not_counted_twice() -> None:
    _gradients(early=True)


def gradients_freed_late_are_not_counted_twice() -> None:
    _gradients(early=False)


def the_watcher_itself_keeps_nothing_alive() -> None:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    gone: list[weakref.ref[torch.Tensor]] = []
    gc.collect()
    gc.disable()  # what only a cycle holds would stay
    try:
        with watch(model, optimizer):
            for _ in range(6):
                output = model(torch.randn(256, 64))
                gone.append(weakref.ref(output))
                output.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert [ref() is None for ref in gone] == [True] * 5 + [False]
    finally:
        gc.enable()


def what_fsdp_gathers_and_reduces_is_told_apart() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from advisor.measurement.parts import Observed

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    size, rows, mesh = 4 * (32 * 32 + 32), 4 * 32 * 8, init_device_mesh("cpu", (1,))
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    before = torch.UntypedStorage.resize_
    with Observed(model, optimizer) as seen:
        step()
    assert torch.UntypedStorage.resize_ == before
    assert seen.made["forward"]["communication"] == size  # one layer gathered at a time
    assert seen.made["forward"]["activations"] <= 5 * rows
    assert seen.made["backward"]["gradients"] >= 2 * size  # the whole one of a layer, and those divided already
    assert all(seen.made[phase]["optimizer"] == 3 * size for phase in ("forward", "backward"))  # momentum


def ddps_buckets_are_told_apart() -> None:
    import torch.distributed as dist

    from advisor.measurement.parts import Observed

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    size = 4 * (32 * 32 + 32)
    for views in (False, True):
        model = torch.nn.Linear(32, 32)
        whole = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=views)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            with Observed(model, optimizer) as seen:  # of the model within: the frame above it is DDP's
                whole(torch.randn(8, 32)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            assert seen.made["forward"].get("communication", 0) == (0 if views else size), number
            assert seen.made["backward"]["gradients"] == size, (views, number)


def kernels_that_libraries_register_are_seen() -> None:
    library = torch.library.Library("flash_attn", "DEF")
    library.define("_flash_attn_forward(Tensor q, Tensor k, Tensor v, float dropout_p) -> (Tensor, Tensor)")
    library.impl("_flash_attn_forward", lambda q, k, v, p: (q + k + v, q.sum(-1)), "CPU")

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q):  # type: ignore[no-untyped-def]
            with torch.no_grad():
                return torch.ops.flash_attn._flash_attn_forward(q, q, q, 0.0)[0]

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return grad

    class Model(torch.nn.Linear):
        def forward(self, x):  # type: ignore[no-untyped-def]
            return Attention.apply(super().forward(x))

    model = Model(64, 64, bias=False)
    told: list[dict[str, object]] = []
    with watch(model, torch.optim.SGD(model.parameters())) as seen:
        seen.event = lambda kind, level="note", **values: told.append({"kind": kind, **values})  # type: ignore[method-assign]
        for _ in range(2):
            model(torch.zeros(8, 64)).sum().backward()
            seen.optimizer.step()  # type: ignore[union-attr]
    assert {event["backend"] for event in told if event["kind"] == "attention"} == {"flash-2"}
    assert seen.peaks["forward"][1]["activations"] >= 4 * 8 * 64 * 3  # the batch, the projection, and what the kernel made
