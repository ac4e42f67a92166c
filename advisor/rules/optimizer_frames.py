"""What of an optimizer the innermost frames make: fp32 master weights, or the states themselves.

Both read like copies of the weights, and are none that could be left out: Megatron-LM ``distrib_optimizer.py`` clones a shard of each parameter
and widens it as ``shard_main_param``, DeepSpeed's optimizers widen ``weights_partition`` or ``fp32_groups_flat``, apex and TransformerEngine
``master``. States are made in the first step, from the parameter (``zeros_like``) or, as SGD's momentum, from the first gradient.
"""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern

INNERMOST = 4  # frames: what is below the library's own line is torch's or Python's
MASTERS = (
    # an assignment to what is called main or master, of a widened or cloned parameter; its gradient (main_param.grad) is another thing
    r"(?<!\w)(?:\w+_)?(?:main|master)(?:_(?:param|weight|copy)\w{0,2})?\s?=(?!=)[^\n]{0,80}\.(?:float|clone|detach)\(\)|"
    r"\.float\(\)[^\n]{0,30}\bmaster_weights|:_?create_master_\w*(?:param|weight)\w*|"
    r"deepspeed/\S*:__init__: [^\n]*\.clone\(\)\.float\(\)\.detach\(\)|"  # runtime/zero/stage2.py, before stage_1_and_2.py
    # DeepSpeed stage_1_and_2.py, stage3.py, bf16_optimizer.py, fp16/fused_optimizer.py, fp16/unfused_optimizer.py
    r"stage_1_and_2\.py:__init__: weights_partition|:_create_fp32_partitions: |"
    r"\bfp32_(?:partitioned_)?groups?(?:_flat)?(?:_partition)?(?:\.append\(|\s?=)[^\n]{0,80}(?:clone|float)\(\)"
)
STATES = (
    r"\bexp_avg(?:_sq)?(?:_shard)?\b[^\n]{0,40}=\s?(?:\w+\.)*(?:zeros|empty|full)\w*\(|\bmomentum_buffer['\"\]]*\s?=[^\n]{0,30}(?:zeros|clone)|"
    r"optim\w*/\S*\.py:\w+: state\[['\"]\w+['\"]\]\s?=\s?torch\.\w+_like\(|"
    r":(?:step|_?init_(?:group|states?)|update): (?:self\.)?state\[['\"][\w.-]+['\"]\]\s?=(?!=)|"  # an optimizer of its own, wherever it stands
    r"torch/optim/sgd\.py:\w+: [^\n]*\.detach\(\)\.clone\(\)|optim\w*/\S*\.py:_?init(?:ialize)?_(?:param_)?states?\b|:init_state_fn\b"
)
_MASTERS, _STATES = pattern(MASTERS), pattern(STATES)


def _innermost(evidence: Evidence) -> list[str]:
    return [f"{f.file}:{f.function}: {f.code}" for f in (evidence.failure.frames[-INNERMOST:] if evidence.failure is not None else ())]


def makes_masters(evidence: Evidence) -> bool:
    """Whether fp32 master weights are being made: the optimizer's own, not a second form of the weights."""
    return any(_MASTERS.search(text) for text in _innermost(evidence))


def makes_states(evidence: Evidence) -> bool:
    """Whether moments or a momentum are being made, which stay: no temporary of a step."""
    return any(_STATES.search(text) for text in _innermost(evidence))
