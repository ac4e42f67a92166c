"""A loss, output or hook keeps the autograd graph alive across steps."""

from __future__ import annotations

from advisor.deviation import retained
from advisor.evidence import Evidence
from advisor.report import Doing
from advisor.rules import growth, observed, snapshots
from advisor.rules.growth import growing, growing_card
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import oom, trace
from advisor.rules.situation import in_phase
from advisor.run import Run

ROUND = 100
ACCUMULATED = r"\b\w*loss\w*\s*(\+=|=\s*\w*loss\w*\s*\+)\s*(?!.*\b(item|detach|cpu|numpy|float)\b)[\w.]+"


def _periodic(_run: Run, evidence: Evidence) -> str | None:
    """It fails in a training step just after a round one, of a log that shows every step: what is done at such steps leaves something behind."""
    if evidence.failure is None or not in_phase(evidence, "forward", "loss", "backward", None):
        return None
    steps = growth.steps_shown(evidence)
    if len(steps) < 3 or steps[-1] < ROUND or steps[-1] % ROUND or not any(step % ROUND for step in steps[-3:-1]):
        return None
    return f"the last step shown is {steps[-1]:,}, a round one, in a log of every step: chance ends there once in {ROUND}"


def _fault(run: Run, evidence: Evidence) -> Run | None:
    return run.deviating(retained("activations", 1, cause="retained-graph")) if growth.allocated(evidence) and growing(evidence) else None


def _evaluates(evidence: Evidence) -> bool:
    """Whether the script's own evaluation runs the model with its graph, and the failure is there or nobody knows where."""
    return any(key == "code.evaluates-with-graph" for _, key, _ in evidence.seen_keys) and in_phase(evidence, "eval", None)


def _form(_run: Run, evidence: Evidence) -> Form | None:
    """An evaluation that builds a graph is cured where it runs."""
    if not _evaluates(evidence):
        return None
    why = "model.eval() changes layers such as dropout; it does not stop autograd. Each forward pass keeps what a backward pass would need."
    lines = {"torch": ("with torch.no_grad():   # or torch.inference_mode(); around the loop of the evaluation, or as a decorator of its function",)}
    doing = Doing("Evaluate without a graph", why, lines)
    return Form("The evaluation builds a graph that no backward pass will use", ("detach-retained", "smaller-eval-batch"), {"detach-retained": doing})


RULE = Rule(
    id="retained-graph",
    tier="copies",
    title="The autograd graph of earlier steps is kept alive",
    cleared="Nothing keeps graphs of earlier steps: no growth from step to step, no loss summed with its graph.",
    prior=-1.5,
    marks=(
        Mark(
            "retained-graph-growth",
            2.5,
            "allocated grows with the steps",
            "memory_allocated at one point of the step is constant unless tensors are kept",
            when=lambda _, e: growing(e),
        ),
        Mark(
            "retained-graph-in-evaluation",
            -2.0,
            "it grows in evaluation",
            "transformers, Lightning and accelerate evaluate under no_grad or inference_mode",
            when=lambda _, e: None if _evaluates(e) else growth.in_evaluation(e),
        ),
        Mark("retained-graph-fills", 2.0, "what grows fills the card", "a steady footprint fails in its first steps", when=lambda _, e: growth.fills(e)),
        Mark(
            "retained-graph-micro-batches",
            1.0,
            "it grows within one step",
            "between micro batches only gradients are kept, of one size: what adds up is what the loop keeps of each forward pass",
            when=lambda _, e: growth.within_update(e),
        ),
        Mark(
            "retained-graph-growth-card",
            2.2,
            "the card fills with the steps",
            "nvidia-smi's figure: a process's cache grows only where more is held at once than before",
            when=lambda _, e: None if growing(e) else growing_card(e),
        ),
        Mark(
            "retained-graph-told",
            1.8,
            "memory grows, as the reporter says",
            "a step gives back all it took unless something is kept",
            when=lambda _, e: observed.grows(e),
        ),
        Mark(
            "retained-graph-told-evaluation",
            1.3,
            "it grows in evaluation",
            "torch.no_grad: outputs that are kept keep their graphs without it",
            when=lambda _, e: observed.grows_in_evaluation(e),
        ),
        Mark(
            "retained-graph-periodic",
            2.5,
            "after a round step",
            "torch.no_grad: samples that are made every so many steps without it keep their graphs as long as their tensors live",
            when=_periodic,
        ),
        Mark(
            "retained-graph-sum",
            3.0,
            "losses are summed with their graphs",
            "PyTorch FAQ, 'My model reports cuda runtime error(2): out of memory': a differentiable loss accumulated across the loop",
            pattern=ACCUMULATED,
        ),
        Mark(
            "retained-graph-meter",
            2.5,
            "a running average is fed losses with their graphs",
            "an AverageMeter adds what it is given: a loss that requires grad keeps its graph (PyTorch FAQ)",
            pattern=r"\b\w*(loss|meter|avg|running|stats)\w*\.(update|add|append)\(\s*\[?\s*(?![^\n]*\b(item|detach|cpu|numpy|float|data|val|value)\b)\w*loss",
        ),
        Mark(
            "retained-graph-flag",
            2.5,
            "the graph is kept on purpose",
            "torch.autograd.backward(retain_graph=True) frees no saved tensor",
            pattern=r"retain_graph\s*=\s*True|create_graph\s*=\s*True",
        ),
        Mark(
            "retained-graph-kept",
            2.0,
            "outputs are collected with their graphs",
            "a tensor in a list keeps its grad_fn and everything saved for it",
            pattern=r"\b(losses|outputs|logits|preds|predictions)\.append\(\s*(?!.*\b(item|detach|cpu|numpy)\b)\w+\s*\)",
            when=lambda _, e: None if any(key in ("code.keeps-graph", "code.keeps-on-card") for _, key, _ in e.seen_keys) else "",
        ),
        Mark("retained-graph-snapshot", 4.0, "what grew is what a graph keeps", snapshots.SOURCE, when=lambda _, e: snapshots.grown(e, by_graph=True)),
        Mark("retained-graph-snapshot-more", 1.0, "more is held later", snapshots.SOURCE, when=lambda _, e: snapshots.grown_at_all(e)),
        Mark(
            "retained-graph-code",
            2.5,
            "the script keeps a tensor with its graph over the loop",
            "PyTorch FAQ: a differentiable tensor that outlives its step keeps the step's graph",
            pattern=r"^code\.(keeps-graph|hook-keeps-graph)=",
            on="key",
        ),
        Mark(
            "retained-graph-carried",
            3.0,
            "what the model returns goes into its next step with its graph",
            "PyTorch FAQ: hidden states are to be detached between steps (truncated backpropagation)",
            pattern=r"^code\.(carries-graph)=",
            on="key",
        ),
        Mark(
            "retained-graph-evaluates",
            3.5,
            "the evaluation loop runs the model with its graph",
            "torch.no_grad: without it each forward pass keeps what a backward pass would need",
            pattern=r"^code\.(evaluates-with-graph)=",
            on="key",
            when=lambda _, e: "" if in_phase(e, "eval", None) else None,
        ),
    ),
    fault=_fault,
    form=_form,
    remedies=("detach-retained",),
    fires=(
        Example(
            "just after a round step",
            text="".join(f"[ {n}/1000000] time: 58{n % 10}.1 d_loss: 0.004, g_loss: 1344.6\n" for n in range(997, 1001))
            + trace("networks.py|forward|out = self.UpBlock2(x)")
            + "RuntimeError: CUDA out of memory.\n",
        ),
        Example(
            "a running sum",
            text=(
                "total_loss += loss\nstep 100 memory_allocated 4.10 GiB\nstep 200 memory_allocated 8.30 GiB\nstep 300 memory_allocated 12.40 "
                "GiB\nstep 400 memory_allocated 16.60 GiB\n"
            ),
        ),
        Example(
            "meters that are fed losses",
            text="self.losses.update([coarse_loss * 1000, refine_loss * 1000])\n" + oom("128.00 MiB", allocated=9.9, capacity=10.73),
        ),
    ),
    quiet=(
        Example(
            "no growth", text="loss.backward()\ntotal_loss += loss.item()\nmeter.update(loss.item())\n" + oom("512.00 MiB", allocated=76.5, unallocated=1.2)
        ),
    ),
)
