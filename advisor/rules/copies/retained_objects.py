"""An exception, cache, earlier trainer or model object keeps tensors alive."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import growth, observed, snapshots
from advisor.rules.growth import fills, growing, growing_card
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import oom, trace
from advisor.rules.situation import in_phase
from advisor.run import Run
from advisor.units import GIB, show


def _compiled(run: Run, evidence: Evidence) -> str | None:
    if not growing(evidence):
        return None
    stated = run.job.activations.compile
    return "a compiled function keeps what its frames refer to, and the allocated bytes grow" if stated else None


_BEFORE, _AFTER = pattern(r"\b(?:pre|before)[- _]?(?:the )?offload", re.IGNORECASE), pattern(r"\b(?:post|after)[- _]?(?:the )?offload", re.IGNORECASE)
LEAST_HELD = 4 * GIB  # below it there was little to move
FREED = 0.05  # of what was held: less is rounding and small tensors


def _offload_frees_nothing(_run: Run, evidence: Evidence) -> str | None:
    """As much is allocated after an offload as before it."""
    before = [s for s in evidence.samples if s.allocated_bytes and _BEFORE.search(s.label)]
    after = [s for s in evidence.samples if s.allocated_bytes and _AFTER.search(s.label)]
    for one in before:
        for other in after:
            held, left = one.allocated_bytes or 0, other.allocated_bytes or 0
            if one.rank == other.rank and held >= LEAST_HELD and abs(held - left) <= FREED * held:
                return f"{show(left)} are allocated after the offload ({other.where}), {show(held)} before it"
    return None


RULE = Rule(
    id="retained-objects",
    tier="copies",
    title="Objects of earlier steps, runs or failures keep their tensors alive",
    cleared="Nothing shows objects of earlier steps or runs that keep tensors.",
    prior=-1.5,
    marks=(
        Mark(
            "retained-objects-offload",
            5.0,
            "an offload frees nothing",
            "what is moved is what is named: parameters, gradients, states; caches of modules (TransformerEngine's _fp8_workspaces) stay",
            when=_offload_frees_nothing,
        ),
        Mark(
            "retained-objects-growth",
            2.5,
            "allocated grows from one turn to the next",
            "memory_allocated returns to its level once the objects of a turn are gone",
            when=lambda _, e: growing(e),
        ),
        Mark("retained-objects-fills", 2.0, "what grows fills the card", "a steady footprint fails in its first steps", when=lambda _, e: fills(e)),
        Mark(
            "retained-objects-growth-card",
            2.2,
            "the card fills with the steps",
            "nvidia-smi's figure: a process's cache grows only where more is held at once than before",
            when=lambda _, e: None if growing(e) else growing_card(e),
        ),
        Mark(
            "retained-objects-loop",
            2.5,
            "a trainer is built again in one process",
            "a trainer holds model, optimizer and accelerator; accelerate's AcceleratorState and callbacks outlive `del trainer`",
            pattern=r"\bdel\s+\w*(trainer|model|engine)\w*|accelerator\.free_memory\(",
        ),
        Mark(
            "retained-objects-epoch-end",
            2.5,
            "what each training step returns is kept until the epoch ends",
            "pytorch_lightning before 2.0, loops/epoch/training_epoch_loop.py: outputs are collected where training_epoch_end is defined",
            pattern=r"def training_epoch_end\(\s*self\s*,\s*\w+|training_step_outputs\.append\(",
        ),
        Mark("retained-objects-compiled", 2.0, "compiled", "torch._dynamo caches guards and resume functions per frame", when=_compiled),
        Mark(
            "retained-objects-dynamo",
            1.5,
            "the failing frame is a resumed piece of a compiled function",
            "torch._dynamo names the continuation after a graph break torch_dynamo_resume_in_<function>",
            pattern=r"torch_dynamo_resume_in_",
            on="frame",
        ),
        Mark(
            "retained-objects-exception",
            2.5,
            "a failed attempt's frames are still referred to",
            "a Python exception holds its traceback and so every local tensor (PyTorch FAQ, out of memory in an except clause)",
            pattern=r"During handling of the above exception|find_executable_batch_size|auto_find_batch_size",
        ),
        Mark(
            "retained-objects-retry",
            3.5,
            "a failed try's exception, or a model of an earlier turn, is kept",
            "a Python exception holds its traceback, the traceback its frames, a frame every local tensor (PyTorch FAQ)",
            pattern=r"^code\.(keeps-exception|retries-in-except|keeps-models)=",
            on="key",
        ),
        Mark(
            "retained-objects-left",
            3.0,
            "much stays allocated after a failed try or a clean-up",
            "torch.cuda.memory_allocated counts tensors that something still refers to; empty_cache gives back only what nothing does",
            when=lambda _, e: growth.left_behind(e),
        ),
        Mark(
            "retained-objects-turns",
            2.5,
            "it grows from one run to the next in one process",
            "a training loop alone gives back what it took at each step; what a run binds lives as long as its names",
            when=lambda _, e: growth.between_runs(e),
        ),
        Mark(
            "retained-objects-notebook",
            1.0,
            "a model is loaded again in a notebook that has run before",
            "IPython names a cell's frames by its run; what earlier runs bound, and the last exception (sys.last_traceback), stays alive",
            pattern=r"<ipython-input-(?!1-)\d+|(?:Cell|Input) In ?\[(?!1\])\d+\]|notebook cell (?!1\b)\d+",
            when=lambda _, e: "" if in_phase(e, "load", None) else None,
        ),
        Mark(
            "retained-objects-restart",
            3.0,
            "a fresh process has room where this one has none any more",
            "IPython keeps what earlier cells bound, and the last exception with its frames (sys.last_traceback)",
            pattern=(
                r"\b[Rr]estart\w* (?:the |my )?(?:kernel|runtime|session|notebook|python|colab)\b"
                r"[^.!?\n]{0,40}\b(?:fix\w*|help\w*|works?|solve\w*|goes away|is fine)|"
                r"\b(?:after|until) (?:I )?restart\w* (?:the |my )?(?:kernel|runtime|session|notebook|colab)\b|"
                r"\bfirst (?:run|time)(?: it)? (?:works?|worked|is fine|was fine|runs?)\b[^!?\n]{0,80}\b(?:again|second (?:run|time))\b"
            ),
        ),
        Mark(
            "retained-objects-trials",
            4.0,
            "an earlier trial of a search ran in this process",
            "optuna logs 'Trial N failed' counting from 0; transformers run_hp_search_optuna builds a model a trial (freed since PR 35440)",
            pattern=r"Trial [1-9]\d{0,5} (failed|finished)",
            on="line",
        ),
        Mark(
            "retained-objects-search",
            1.5,
            "trials of a search train one after another in one process",
            "transformers integrations run_hp_search_*; optuna _optimize._run_trial; ray tune function trainables",
            pattern=r"run_hp_search|hyperparameter_search|optuna/\S*:_run_trial|:_objective\b|\bstudy\.optimize\(|\bwandb\.agent\(",
        ),
        Mark(
            "retained-objects-trained",
            3.0,
            "a training ended in this process before the model was loaded again",
            "transformers Trainer.train returns TrainOutput and logs train_runtime at its end; the trainer and its model stay bound",
            pattern=r"TrainOutput\(|['\"]train_runtime['\"]",
            when=lambda _, e: "" if in_phase(e, "load", "merge") else None,
        ),
        Mark(
            "retained-objects-checkpoint",
            1.5,
            "the loaded checkpoint stays bound to a name",
            "torch.load returns a dict whose tensors live as long as the variable",
            pattern=r"\b(checkpoint|ckpt|state_dict|state)\s*=\s*torch\.load\((?!.*(cpu|meta))",
        ),
        Mark(
            "retained-objects-kept",
            3.5,
            "the script keeps tensors on the card in a list that outlives the step",
            "torch.Tensor.detach shares the storage: what is kept stays on its device until it is copied to the host",
            pattern=r"^code\.(keeps-detached)=",
            on="key",
            when=lambda _, e: "" if (e.failure is not None or growing(e) or observed.grows(e)) and not in_phase(e, "load", "save", "resume", "merge") else None,
        ),
        Mark(
            "retained-objects-helper",
            3.0,
            "a helper that only prepares something is loaded onto the card and never taken away",
            "a local name keeps a module's weights until its function ends; diffusers' examples delete text encoders and VAEs once embeddings are computed",
            pattern=r"^code\.(left-on-card)=",
            on="key",
        ),
        Mark(
            "retained-objects-again",
            3.0,
            "a later run in the same process fails",
            "what earlier runs bound in a process stays alive; a new process starts with an empty card",
            when=lambda _, e: observed.fails_again(e),
        ),
        Mark(
            "retained-objects-told",
            1.2,
            "memory grows, as the reporter says",
            "a step gives back all it took unless something is kept",
            when=lambda _, e: observed.grows(e),
        ),
        Mark("retained-objects-snapshot", 4.0, "what grew is no graph's", snapshots.SOURCE, when=lambda _, e: snapshots.grown(e, by_graph=False)),
        Mark("retained-objects-snapshot-more", 1.0, "more is held later", snapshots.SOURCE, when=lambda _, e: snapshots.grown_at_all(e)),
    ),
    remedies=("detach-retained", "empty-cache", "upgrade"),
    fires=(
        Example("a cell that is run again", text="Rerunning the cell that loads the model ends in CUDA out of memory. The first time it is fine.\n"),
        Example("a second fold in one process", text="The first fold trains, the second fold is OOM at its first batch. After I restart the kernel it runs.\n"),
        Example(
            "features of every batch in a list of the object",
            text="def training_step(self, batch):\n    feats = self.encoder(batch)\n    self.bank.append(feats.detach())\n"
            "    return self.head(feats).mean()\n\n"
            "VRAM climbs with each iteration until it is OOM.\n",
        ),
        Example(
            "a VAE for latents that stays",
            text="if not cached:\n    vae = AutoencoderKL.from_pretrained(path).to('cuda')\n    for image in images:\n        save(vae.encode(image))\n"
            "unet = build().to('cuda')\n\nRuntimeError: CUDA out of memory.\n",
        ),
        Example(
            "a trainer for each fold",
            text=(
                "del trainer, model\niter 0 memory_allocated 2.10 GiB\niter 1 memory_allocated 4.20 GiB\niter 2 memory_allocated 6.30 GiB\niter 3 "
                "memory_allocated 8.40 GiB\n"
            ),
        ),
        Example(
            "the ninth trial of a search",
            text="[W 2021-02-01 15:24:42,103] Trial 8 failed because of the following error: RuntimeError('CUDA out of memory.')\n"
            + trace("optuna/_optimize.py|_run_trial|value_or_values = func(trial)", "torch/nn/modules/module.py|to|return self._apply(convert)")
            + oom("16.00 MiB", allocated=13.66, capacity=14.76),
        ),
    ),
    quiet=(
        Example(
            "copied to the host",
            text="def training_step(self, batch):\n    feats = self.encoder(batch)\n    self.bank.append(feats.detach().cpu())\n"
            "    self.losses.append(loss.detach())\n" + oom("512.00 MiB", allocated=76.5, unallocated=1.2),
        ),
        Example("the first step", text=oom("512.00 MiB", allocated=76.5, unallocated=1.2)),
    ),
)
