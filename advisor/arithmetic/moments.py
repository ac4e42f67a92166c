"""The moments at which memory is counted. Steady state is the second step: optimizer states exist.

Within the backward phase the live set only changes in a few ways (activations leave block by block, gradients arrive), so its
maximum lies at an end of that line: at the last block, the first block, or the root's own gradients. One moment stands for each.
"""

from __future__ import annotations

from collections.abc import Iterable

from advisor.ledger import Moment

LOAD_MATERIALISE = "load.materialise"
LOAD_READY = "load.ready"
GENERATE = "rollout.generate"
SCORE = "rollout.log-probs"
HANDOVER = "sync.handover"
FORWARD = "forward.blocks"
LOSS_FORWARD = "loss.forward"
LOSS_BACKWARD = "loss.backward"
BACKWARD_LAST = "backward.last-block"
BACKWARD_FIRST = "backward.first-block"
BACKWARD_ROOT = "backward.root"
STEP = "step.update"
EVAL_FORWARD = "eval.forward"
EVAL_GATHER = "eval.gather"
SAVE = "save.gather"
RESUME = "resume.load"
MERGE = "merge.widen"

_ALL = (
    LOAD_MATERIALISE, LOAD_READY, GENERATE, SCORE, HANDOVER, FORWARD, LOSS_FORWARD, LOSS_BACKWARD, BACKWARD_LAST, BACKWARD_FIRST,
    BACKWARD_ROOT, STEP, EVAL_FORWARD, EVAL_GATHER, SAVE, RESUME, MERGE,
)  # fmt: skip
MOMENTS = {name: Moment(name, name.partition(".")[0]) for name in _ALL}

TRAINING = frozenset({FORWARD, LOSS_FORWARD, LOSS_BACKWARD, BACKWARD_LAST, BACKWARD_FIRST, BACKWARD_ROOT, STEP})
BACKWARD = frozenset({BACKWARD_LAST, BACKWARD_FIRST, BACKWARD_ROOT})
COMPUTE = TRAINING - {STEP}
ALWAYS = frozenset(_ALL)
AFTER_LOAD = ALWAYS - {LOAD_MATERIALISE, LOAD_READY}


def of_phases(phases: Iterable[str]) -> frozenset[str]:
    """Every moment of the given phases; all moments where none is given."""
    wanted = frozenset(phases)
    return ALWAYS if not wanted else frozenset(m.id for m in MOMENTS.values() if m.phase in wanted)
