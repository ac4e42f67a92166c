"""Tiny real runs, each with one fault planted at a line marked FAULT, or with none; :mod:`forking` runs each in a process of its own."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from advisor.measurement import watch
from advisor.measurement.watching.session import Watch

VOCAB, WIDTH, STEPS = 97, 32, 6


class WideNorm(nn.LayerNorm):
    def forward(self, x):  # type: ignore[no-untyped-def]
        wide = x.float()  # FAULT norm
        return F.layer_norm(wide, self.normalized_shape, self.weight.float(), self.bias.float()).to(x.dtype)


class Block(nn.Module):
    def __init__(self, norm=nn.LayerNorm, attention="fused", dropout=0.0) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.attention, self.dropout = attention, dropout

    def forward(self, x):  # type: ignore[no-untyped-def]
        q, k, v = (t.view(*t.shape[:2], 2, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        if self.attention == "math":
            with sdpa_kernel(SDPBackend.MATH):
                a = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # FAULT attention
        else:
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        h = F.dropout(F.gelu(self.up(self.norm2(x))), self.dropout, self.training)  # FAULT recompute
        return x + self.down(h)


class Tiny(nn.Module):
    def __init__(self, checkpointing=False, ignore_switch=False, keep_state=True, **block) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.blocks = nn.ModuleList(Block(**block) for _ in range(2))
        self.gradient_checkpointing, self.ignore, self.keep_state = checkpointing, ignore_switch, keep_state

    def forward(self, tokens):  # type: ignore[no-untyped-def]  # FAULT switch
        x = self.embed(tokens)
        for block in self.blocks:
            if self.gradient_checkpointing and not self.ignore:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.keep_state)
            else:
                x = block(x)
        return self.head(x)


def tokens() -> "torch.Tensor":
    return torch.randint(0, VOCAB, (4, 33))


def step(model: nn.Module, optimizer: "torch.optim.Optimizer", scale: float = 1.0) -> "torch.Tensor":
    batch = tokens()
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    (loss * scale).backward()
    optimizer.step()  # FAULT underflow
    optimizer.zero_grad()
    return loss.detach()


def loop(model: nn.Module, *, scale: float = 1.0, lr: float = 1e-3) -> Watch:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, eps=1e-4)
    with watch(model, optimizer) as seen:
        for _ in range(STEPS):
            step(model, optimizer, scale)
    return seen


def clean() -> Watch:
    return loop(Tiny())


def clean_bf16() -> Watch:
    return loop(Tiny().bfloat16())


def clean_checkpointed() -> Watch:
    return loop(Tiny(checkpointing=True, dropout=0.3))


def clean_inline() -> Watch:
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    losses, total = [], 0.0
    with watch(model, optimizer) as seen:
        for _ in range(STEPS):
            batch = tokens()
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            total += losses[-1]
    return seen


def second_bf16_copy() -> Watch:
    model = Tiny().bfloat16()
    backup = {name: value.clone() for name, value in model.state_dict().items()}  # FAULT here
    seen = loop(model)
    del backup
    return seen


def fp32_copy_of_bf16() -> Watch:
    model = Tiny().bfloat16()
    masters = [p.detach().float() for p in model.parameters()]  # FAULT here
    seen = loop(model)
    del masters
    return seen


def transposed_copy() -> Watch:
    model = Tiny()
    packed = {n: p.detach().t().contiguous() for n, p in model.named_parameters() if p.dim() == 2}  # FAULT here
    seen = loop(model)
    del packed
    return seen


def reference_model() -> Watch:
    model = Tiny()
    reference = copy.deepcopy(model).eval().requires_grad_(False)  # FAULT here
    seen = loop(model)
    del reference
    return seen


class Pair:
    """As a trainer holds the model that it compares with."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.reference = copy.deepcopy(model).eval().requires_grad_(False)  # FAULT pair

    def run(self) -> Watch:
        return loop(self.model)


def reference_of_a_trainer() -> Watch:
    pair = Pair(Tiny())
    seen = pair.run()
    size = sum(p.numel() * p.element_size() for p in pair.reference.parameters())
    assert all(parts["reference"] == size and sum(parts.values()) == total for total, parts in seen.peaks.values()), seen.peaks
    return seen


def retained_loss_graph() -> Watch:
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    with watch(model, optimizer) as seen:
        for _ in range(STEPS):
            batch = tokens()
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)  # FAULT here
    return seen


def summed_loss_graph() -> Watch:
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    total = 0
    with watch(model, optimizer) as seen:
        for _ in range(STEPS):
            batch = tokens()
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = total + loss  # FAULT here
    return seen


class Keeper:
    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def keep(self, value: "torch.Tensor") -> None:
        self.kept.append(value)  # FAULT outputs


def outputs_kept() -> Watch:
    model, keeper = Tiny(), Keeper()
    optimizer = torch.optim.AdamW(model.parameters())
    with watch(model, optimizer) as seen:
        for _ in range(STEPS):
            batch = tokens()
            logits = model(batch[:, :-1])
            F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
            keeper.keep(logits.detach())
            del logits
            optimizer.step()
            optimizer.zero_grad()
    return seen


class Remembering(Tiny):
    def forward(self, tokens):  # type: ignore[no-untyped-def]
        logits = super().forward(tokens)
        self.seen.append(logits.detach())  # FAULT module
        return logits


def outputs_kept_by_the_model() -> Watch:
    model = Remembering()
    model.seen = []  # type: ignore[assignment]
    return loop(model)


def norm_upcast() -> Watch:
    return loop(Tiny(norm=WideNorm).bfloat16())


def math_attention() -> Watch:
    return loop(Tiny(attention="math"))


def checkpointing_off() -> Watch:
    return loop(Tiny(checkpointing=True, ignore_switch=True))


def checkpoint_differs() -> Watch:
    return loop(Tiny(checkpointing=True, dropout=0.3, keep_state=False))


def underflow() -> Watch:
    return loop(Tiny().half(), scale=2.0**-12, lr=0.0)


def resumed() -> Watch:
    model = Tiny().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    wide = {k: {n: v.float() for n, v in s.items()} for k, s in optimizer.state_dict()["state"].items()}
    saved = {"model": copy.deepcopy(model.state_dict()), "optimizer": {**optimizer.state_dict(), "state": wide}}
    del wide
    again = Tiny().bfloat16()
    del model, optimizer
    state = copy.deepcopy(saved)  # FAULT here
    del saved
    again.load_state_dict(state["model"])
    optimizer = torch.optim.AdamW(again.parameters())
    optimizer.load_state_dict(state["optimizer"])
    with watch(again, optimizer) as seen:
        for _ in range(STEPS):
            step(again, optimizer)
    return seen
