"""Bytes of optimizer state for one tensor, by optimizer.

Sources: torch.optim (states of the parameter's shape and dtype); bitsandbytes optim/optimizer.py (8-bit blocks of 256 with an fp32 maximum each,
tensors under 4,096 elements in 32 bit); torchao/optim (4-bit blocks of 128, tensors under 4,096 elements unquantised); transformers
optimization.py Adafactor (a row and a column of second moments); galore_torch/galore_projector.py and adamw.py; apollo_torch; Muon and
Adam-mini as published (one momentum; a second moment a block).
"""

from __future__ import annotations

from advisor.arithmetic.parameters import Item

BNB_BLOCK, BNB_SMALL = 256, 4096
AO_BLOCK, AO_SMALL = 128, 4096
PAGED_FROM = 100_000  # bitsandbytes get_state_buffer: smaller tensors stay in ordinary device memory
ONE_STATE = frozenset({"sgd-momentum", "lion"})
PROJECTED = frozenset({"galore-adamw", "apollo"})
EIGHT_BIT = frozenset({"adamw-8bit", "paged-adamw-8bit"})
PAGED = frozenset({"paged-adamw", "paged-adamw-8bit"})


def of(name: str, item: Item, each: int, *, rank: int = 128, wide_embedding: bool = False) -> int:
    """Bytes of all states of one occurrence of a tensor whose full-precision state has ``each`` bytes an element."""
    n = item.elements
    if name == "sgd":
        return 0
    if name in ONE_STATE:
        return each * n
    if name in EIGHT_BIT:
        if n < BNB_SMALL or (wide_embedding and item.role == "embedding"):
            return 8 * n
        return 2 * (n + 4 * -(-n // BNB_BLOCK))
    if name == "adamw-4bit":
        return 2 * each * n if n < AO_SMALL else 2 * (-(-n // 2) + 4 * -(-n // AO_BLOCK))
    if name == "adafactor":
        return 4 * (item.rows + item.columns) if item.matrix else 4 * n
    if name == "muon":
        return each * n if item.matrix and item.role not in ("embedding", "head", "position") else 2 * each * n
    if name == "adam-mini":
        return each * n + (4 * item.rows if item.matrix else 4)
    if name in PROJECTED and item.matrix and item.role not in ("embedding", "head", "position"):
        small, large = sorted((item.rows, item.columns))
        low = min(rank, small)
        return 2 * each * low * large + (each * low * small if name == "galore-adamw" else 0)
    return 2 * each * n


def step_temporary(name: str, item: Item, grad: int, weight: int) -> int:
    """Bytes that the step needs for the moment it updates one tensor, where it goes tensor by tensor."""
    n = item.elements
    if name == "adafactor":
        casts = (0 if grad == 4 else 4) + (0 if weight == 4 else 4)  # fp32 copies of the gradient and of the parameter
        return n * (casts + 8)  # the update before and after its factors are multiplied in
    if name == "muon" and item.matrix:
        small = min(item.rows, item.columns)
        return 3 * 2 * n + 2 * 2 * small * small  # Newton-Schulz in bf16: X, its product, the update; A and B
    if name == "galore-adamw" and item.matrix and item.role not in ("embedding", "head", "position"):
        small, large = sorted((item.rows, item.columns))
        return 4 * (n + small * large + small * small)  # torch.linalg.svd of an fp32 copy: U, S, Vh (full_matrices=False)
    return 0
