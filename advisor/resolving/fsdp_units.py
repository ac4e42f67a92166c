"""Whether FSDP wraps each layer, or nothing but the model itself: no policy is the default wherever none is asked for."""

from __future__ import annotations

from typing import Any

from advisor.resolving import family
from advisor.resolving.draft import Draft

WRAPS_ALWAYS = (5, 10)  # transformers training_args.py _process_fsdp_args: TRANSFORMER_BASED_WRAP unless fsdp_config says otherwise
BY_A_WORD = "transformers 4.45 to 5.9 training_args.py FSDPOption.AUTO_WRAP: only the word auto_wrap sets a policy, and accelerate's own default is NO_WRAP"


def settle(draft: Draft) -> None:
    """``parallel.wrap.blocks``, where a script or the Trainer's words decide it."""
    keys = draft.evidence.seen_keys
    by_name = any(key.lower().endswith("auto_wrap_policy") and str(value).upper() != "NO_WRAP" for _, key, value in keys)  # of accelerate or its environment
    for where, key, value in keys:
        if key == "code.one-unit":
            draft.infer("parallel.wrap.blocks", "root", f"FSDP is called without auto_wrap_policy ({where})")
        elif key == "fsdp" and not by_name and draft.framework in family.ACCELERATE and _without_policy(value):
            version = draft.major_minor("transformers")
            if version is None:
                draft.assume(
                    "parallel.wrap.blocks", "root", f"fsdp names no auto_wrap ({where}), which decided it until transformers 5.9; the version is not known",
                    alternatives=("own unit",),
                )  # fmt: skip
            elif version < WRAPS_ALWAYS:
                draft.default("parallel.wrap.blocks", "root", BY_A_WORD, f"fsdp names no auto_wrap ({where})")


def _without_policy(value: Any) -> bool:
    words = value.split() if isinstance(value, str) else value if isinstance(value, (list, tuple)) else ()
    return bool({"full_shard", "shard_grad_op", "hybrid_shard"} & set(map(str, words))) and "auto_wrap" not in words
