"""A low-rank projection's decomposition (e.g. on a vocabulary-sized matrix) needs more than the card."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.run import Run


def _vocabulary(run: Run, _evidence: Evidence) -> str | None:
    shape = run.architecture
    if shape is None or run.job.method.kind != "galore":
        return None
    square = shape.vocab * shape.vocab * 4
    return f"a full decomposition of the vocabulary matrix has a factor of {shape.vocab:,}² x 4 = {square / 2**30:.1f} GiB"


RULE = Rule(
    id="projection-temporary",
    tier="shard",
    title="The projection's decomposition needs more memory than the card has left",
    cleared="No low-rank projection is decomposed.",
    prior=-1.2,
    marks=(
        Mark(
            "projection-temporary-frame",
            4.5,
            "a decomposition is being computed",
            "galore_torch/galore_projector.py get_orthogonal_matrix: torch.linalg.svd; peft PiSSA, OLoRA, CorDA, EVA initialisations: a decomposition of each "
            "weight, or of the covariance of its inputs (tuners/lora/corda.py calib_cov_distribution, utils/incremental_pca.py)",
            pattern=r"galore_projector|get_orthogonal_matrix|linalg\.(svd|qr|eigh)|svd_lowrank|pissa_init|olora_init|corda_init|eva_init|low_rank_projector|"
            r"tuners/lora/(?:corda|eva)\.py:|incremental_pca\.py:",
        ),
        Mark("projection-temporary-vocabulary", 1.0, "a vocabulary-sized matrix", "torch.linalg.svd(full_matrices) returns square factors", when=_vocabulary),
    ),
    remedies=("exclude-vocabulary-layers", "smaller-rank", "lora"),
    fires=(
        Example(
            "GaLore on the head",
            job=job(method="{kind: galore, rank: 128}", optimizer="{name: galore-adamw}"),
            text=trace("galore_torch/galore_projector.py|get_orthogonal_matrix|U, s, Vh = torch.linalg.svd(matrix, full_matrices = False)")
            + oom("61.28 GiB", allocated=40.0, free=38.0),
        ),
    ),
    quiet=(Example("plain AdamW", job=job(optimizer="{name: adamw}"), text=oom("512.00 MiB", allocated=76.5)),),
)
