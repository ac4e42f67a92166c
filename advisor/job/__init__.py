"""Job: what the user wrote, in the job file's form (version 1), frozen and validated.

A field that is not written is ``None``: unknown, never zero. A section marked optional that is absent is not used.
:func:`advisor.run.resolve` fills what is unknown and says from where. Bounds stop ``layers: 10**12`` before any arithmetic.
"""

from advisor.job.checking import JobError
from advisor.job.division import Offload, Parallel
from advisor.job.known import fields, nearest_field
from advisor.job.lifecycle import Eval, Load, Resume, Rollout, Save
from advisor.job.place import Framework, Hardware, OtherGpu
from advisor.job.reading import MAX_JOB_BYTES, meant_as_job, read_job
from advisor.job.section import Section
from advisor.job.training import Activations, Batch, Lengths, Method, Model, Optimizer, Precision, Vision
from advisor.job.whole import Job

__all__ = [
    "MAX_JOB_BYTES",
    "Activations", "Batch", "Eval", "Framework", "Hardware", "Job", "JobError", "Lengths", "Load", "Method", "Model", "Offload", "Optimizer",
    "OtherGpu", "Parallel", "Precision", "Resume", "Rollout", "Save", "Section", "Vision", "fields", "meant_as_job", "nearest_field", "read_job",
]  # fmt: skip
