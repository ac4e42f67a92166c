"""Private pools (CUDA graphs, many compiled shapes) hold memory the job cannot use."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import observed, snapshots, tried
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import oom, trace
from advisor.run import Run
from advisor.units import GIB, show


def _private(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    held = failure.private_pool_bytes if failure is not None else None
    return f"{show(held)} lie in private pools" if held is not None and held >= GIB // 2 else None


def _large(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    if failure is None or failure.private_pool_bytes is None or failure.capacity_bytes is None:
        return None
    return (
        f"private pools hold {failure.private_pool_bytes / failure.capacity_bytes:.0%} of the card"
        if failure.private_pool_bytes > 0.08 * failure.capacity_bytes
        else None
    )


def _tried(_run: Run, evidence: Evidence) -> str | None:
    """Both were tried, and graphs take clearly more."""
    both = tried.pair(evidence, tried.GRAPHS)
    return both.says if both is not None and both.costs else None


RULE = Rule(
    id="graph-pools",
    tier="fallback",
    title="Private pools of CUDA graphs hold memory that the rest of the job cannot use",
    cleared="No private pool holds a noticeable share of the card.",
    prior=-1.5,
    marks=(
        Mark("graph-pools-private", 3.0, "private pools", "c10 CUDACachingAllocator prints what private pools hold (graphs, MemPool)", when=_private),
        Mark("graph-pools-large", 2.5, "large pools", "the same counter", when=_large),
        Mark(
            "graph-pools-recorded",
            3.5,
            "a graph is recorded for each shape",
            "torch/_inductor/cudagraph_trees.py: 'CUDAGraph supports dynamic shapes by recording a new graph for each distinct input size'",
            pattern=r"recording a new graph for each distinct input size|observed \d+ distinct sizes|cudagraph_(trees|utils)\.py|CUDAGraphNode",
        ),
        Mark(
            "graph-pools-captured",
            3.5,
            "the step is captured as CUDA graphs: each graph keeps its inputs, outputs and what its backward pass needs",
            "torch/cuda/graphs.py make_graphed_callables; transformer_engine/pytorch/graph.py; Megatron-LM core/transformer/cuda_graphs.py create_cudagraphs",
            pattern=r"make_graphed_callables|create_cudagraphs|cuda_graphs\.py|torch/cuda/graphs\.py|:capture_begin\b|torch\.cuda\.graph\(|CUDAGraph\(\)",
            on="frame",
            when=lambda _, e: None if any(word in f.file for f in e.frames for word in ("vllm/", "sglang/")) else "",
        ),
        Mark(
            "graph-pools-mode",
            2.0,
            "a mode of torch.compile that captures CUDA graphs",
            "torch/_inductor/__init__.py list_mode_options: reduce-overhead and max-autotune set triton.cudagraphs",
            pattern=r"\bmode\s?=\s?[\"'](?:max-autotune|reduce-overhead)[\"']|\bmode (?:max-autotune|reduce-overhead)(?!-no)",
        ),
        Mark(
            "graph-pools-told",
            3.0,
            "more with graphs than without",
            "CUDA semantics notes: a captured graph's tensors live in a private pool as long as the graph, whatever else needs the memory",
            when=lambda _, e: observed.graphs_cost(e),
        ),
        Mark("graph-pools-tried", 3.0, "tried with and without", "a captured graph's tensors live in a private pool", when=_tried),
        Mark("graph-pools-snapshot", 4.0, "private pools in the snapshot", snapshots.SOURCE, when=lambda _, e: snapshots.pools(e)),
    ),
    remedies=("bounded-shapes", "upgrade", "rollout-fraction"),
    fires=(
        Example(
            "told in words", text="With CUDA graphs enabled the memory grows for every new sequence length until it is OOM, without cudagraphs it runs fine.\n"
        ),
        Example(
            "a graph for each layer and micro batch",
            text=trace(
                "train.py|main|layer = torch.cuda.make_graphed_callables(layer, (x,))", "torch/cuda/graphs.py|make_graphed_callables|with torch.cuda.graph("
            )
            + "torch.OutOfMemoryError: CUDA out of memory.\n",
        ),
        Example(
            "a graph for each length",
            text="CUDAGraph supports dynamic shapes by recording a new graph for each distinct input size. We have observed 51 distinct sizes.\n"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 120.00 MiB is free. "
            "Of the allocated memory 60.10 GiB is allocated by PyTorch, with 18.20 GiB allocated in private pools (e.g., CUDA Graphs), "
            "and 512.00 MiB is reserved by PyTorch but unallocated.\n",
        ),
    ),
    quiet=(Example("no pools", text=oom("512.00 MiB", allocated=76.9, unallocated=0.6)),),
)
