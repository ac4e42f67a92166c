"""Cuts a model into a pipeline's stages: embedding with the first, norm and head with the last, each stage's layers where they stand.

A stage is the model without what other stages have, as torchtitan (distributed/pipeline_parallel.py ``pipeline_module_split``) and NeMo AutoModel
(components/distributed/pipelining/functional.py) make it: the decoder's own code runs over fewer layers and is given activations in the embedding's
place, and the last stage answers with logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from advisor.job import Job
from advisor.simulation.request import CannotProbe

NEEDED = ("embed_tokens", "layers", "norm")


def layout(job: Job, layers: int) -> tuple[int, ...]:
    """Layers of each stage, first to last; an interleaved rank holds every ``pipeline``-th of them.

    As the job lists them, else dealt out evenly; torchtitan counts embedding and head as a layer each (``generate_llm_fqn_per_model_part``, since
    August 2025).

    Raises:
        CannotProbe: a layout of another number of layers, or a stage with nothing in it.
    """
    stages = (job.parallel.pipeline or 1) * (job.parallel.virtual_stages or 1)
    found = tuple(job.parallel.pipeline_layout or ())
    if not found:
        outer = 1 if job.framework.name == "torchtitan" else 0
        share, rest = divmod(layers + 2 * outer, stages)
        found = tuple(share + (number < rest) - outer * (number in (0, stages - 1)) for number in range(stages))
    if sum(found) != layers or len(found) != stages:
        raise CannotProbe(f"{len(found)} stages of {sum(found)} layers together are written, and the model has {layers} in {stages}: the estimate stands in")
    if any(n < 0 for n in found) or 0 in found[1:-1]:
        raise CannotProbe(f"{layers} layers over {stages} stages leave one of them without any: the estimate stands in")
    return found


def stages(model: Any, job: Job, numbers: Sequence[int]) -> list[nn.Module]:
    """The stages ``numbers`` of a model.

    Raises:
        CannotProbe: a class whose decoder can not be given activations in its embedding's place.
    """
    titan = job.model.source == "torchtitan"
    decoder = model.get_decoder()
    if not titan and not all(hasattr(decoder, name) for name in NEEDED):
        raise CannotProbe(f"the probe does not cut {type(model).__name__} into stages: the estimate stands in")
    sizes = layout(job, len(decoder.layers))
    return [(_of_titan if titan else _of_transformers)(model, sizes, number) for number in numbers]


def _of_titan(model: Any, sizes: Sequence[int], number: int) -> nn.Module:
    stage: Any = _twin(model)
    start = sum(sizes[:number])
    stage.layers = nn.ModuleDict(dict(list(model.layers.items())[start : start + sizes[number]]))
    if number > 0:
        stage.tok_embeddings = nn.Identity()
    if number < len(sizes) - 1:
        stage.norm, stage.output = nn.Identity(), nn.Identity()
    whole: nn.Module = stage
    return whole


def _of_transformers(model: Any, sizes: Sequence[int], number: int) -> nn.Module:
    first, last, start = number == 0, number == len(sizes) - 1, sum(sizes[:number])
    stage: Any = _twin(model)
    before = model.get_decoder()
    name = next(name for name, child in model.named_children() if child is before)
    decoder: Any = _twin(before)
    config: Any = copy.deepcopy(before.config)
    config.num_hidden_layers = sizes[number]
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = list(config.layer_types)[start : start + sizes[number]]
    decoder.config, decoder.layers = config, nn.ModuleList(list(before.layers)[start : start + sizes[number]])
    if hasattr(before, "rotary_emb"):
        decoder.rotary_emb = copy.deepcopy(before.rotary_emb)  # every stage has its own
    setattr(stage, name, decoder)
    if not first:
        decoder.embed_tokens = None
    if not last:
        decoder.norm = nn.Identity()
        stage.lm_head = None
    stage.forward = _forward(stage, decoder, first=first, last=last)
    whole: nn.Module = stage
    return whole


def _forward(stage: Any, decoder: Any, *, first: bool, last: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Token ids or activations ``[micro_batch, seq, hidden]`` to activations or logits, without the cache that is for generating."""
    own = type(stage).forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        given = {"input_ids" if first else "inputs_embeds": x, "use_cache": False}
        out: torch.Tensor = own(stage, **given).logits if last else decoder(**given).last_hidden_state
        return out

    return forward


def _twin(module: nn.Module) -> nn.Module:
    """The module with the same children, parameters and buffers in dictionaries of its own."""
    twin = copy.copy(module)
    for key, value in list(vars(twin).items()):
        if isinstance(value, dict):
            twin.__dict__[key] = copy.copy(value)
    return twin
