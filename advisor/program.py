"""How the user's own program is written, as far as it was seen: whose loop it runs decides which lines it can take.

What :mod:`advisor.reading.configs.own_program` found in a script or a command, and what the frames of a traceback show.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from msgspec import Struct

from advisor.evidence import Evidence
from advisor.run import Run

XLA = "jax"  # whose lines a technique's page has under this name
Loop = Literal["lightning", "own"]

_LIGHTNING_FRAMES = ("lightning/pytorch/", "pytorch_lightning/")
_LIBRARIES = ("transformers/", "trl/", "accelerate/", "axolotl/", "llamafactory/", "verl/", "deepspeed/", "site-packages", "dist-packages")
_OWN_CODE = (
    ".backward()",
    "model.state_dict()",
    "FSDP.state_dict_type(",
    "fully_shard(",
    "FullyShardedDataParallel(",
    "DistributedDataParallel(",
    "FSDP(",
    "DDP(",
)


class Program(Struct, frozen=True):
    """``loop``: whose loop trains, where no framework with a config of its own does; ``None``: not seen.

    ``model``: the name of the model in the script. ``flags``: settings are given on the command line. ``images``: the model is fed
    images, not text: no tokenizer, no sequence to shorten.
    """

    loop: Loop | None = None
    model: str = "model"
    flags: bool = False
    images: bool = False
    library: str | None = None  # of image models, whose names for its switches differ
    xla: bool = False  # JAX or TensorFlow: no line of PyTorch's is for it

    def speaks(self, framework: str | None) -> tuple[str, ...]:
        """Whose lines the program takes, as technique pages name them."""
        if self.xla:
            return (XLA,)
        own = "lightning" if self.loop == "lightning" else framework or "custom"
        return (own,) if self.library is None else (self.library, own)


def compiled_by_xla(run: Run) -> bool:
    """Whether the program that failed is JAX's or TensorFlow's, by its failure's text."""
    failure = run.seen.failure if run.seen is not None else None
    return failure is not None and failure.backend in ("jax", "tensorflow")


def of_run(run: Run) -> Program:
    """The program of a run; everything unknown where nothing was seen."""
    if compiled_by_xla(run):
        return Program(xla=True)
    framework = run.job.framework.name
    seen = _of_evidence(run.seen) if run.seen is not None else Program()
    loop = seen.loop if framework in (None, "custom") else None
    own = framework == "custom" or (framework is None and (seen.flags or seen.images))
    return Program(loop or ("own" if own else None), seen.model, seen.flags, seen.images, seen.library)


def _of_evidence(evidence: Evidence) -> Program:
    said: dict[str, str] = {}
    for _, key, value in evidence.seen_keys:
        if key.startswith("code."):
            said.setdefault(key, str(value))
    loop: Loop | None = "lightning" if said.get("code.loop") == "lightning" else "own" if "code.loop" in said else _of_frames(evidence)
    return Program(loop, said.get("code.variable", "model"), "code.flags" in said and loop is None, "code.images" in said, said.get("code.images"))


def _of_frames(evidence: Evidence) -> Loop | None:
    """The loop that a traceback shows: Lightning's frames; or a script's own step or wrapping, in no library's file."""
    frames = [frame for failure in evidence.failures[:4] for frame in failure.frames]
    if any(frame.file.startswith(_LIGHTNING_FRAMES) for frame in frames):
        return "lightning"
    if any(frame.file.startswith(("transformers/trainer.py", "trl/")) for frame in frames):
        return None
    own = (f for f in frames if not any(name in f.file for name in _LIBRARIES) and not f.file.startswith("torch/"))
    return "own" if any(word in frame.code for frame in own for word in _OWN_CODE) else None


@cache
def layers_of(loop: Loop | None) -> frozenset[str]:
    """Tables whose lines such a loop cannot take: Trainer's arguments, and the files of what it does not run on."""
    if loop == "lightning":
        return frozenset({"hf-trainer", "trl", "accelerate", "fsdp", "deepspeed"})
    return frozenset({"hf-trainer", "trl", "accelerate", "fsdp"}) if loop == "own" else frozenset()
