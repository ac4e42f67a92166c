"""Images beside the text: the class that takes them, what its processor would give it, and the tower frozen, trained or left out.

Sizes come from :mod:`advisor.architecture.vision_tokens`. Positions of the text are given as the processor's grid would make them, so that no
value is asked of a tensor that has none; the grid itself stays on the CPU, where its values are.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from advisor.architecture.vision_tokens import VisionTokens, vision_tokens
from advisor.job import Job
from advisor.simulation.recorder import Recorder
from advisor.simulation.request import CannotProbe

GRIDS = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl"})  # patches in one row, with a grid [time, height, width] an image
WHOLE = frozenset({"llava", "gemma3", "paligemma", "internvl"})  # images of one size [channels, height, width]
TYPED = frozenset({"gemma3", "paligemma"})  # are told which tokens are images
TILED = frozenset({"llava_next"})  # the tiles of an image [tiles, channels, height, width] and the image's size
SPLIT = frozenset({"idefics3", "smolvlm"})  # the parts of an image, whole ones, a row of them a sample
SIZED = frozenset({"mistral3"})  # images as large as they are, and their sizes
TOWERS = ("visual", "vision_tower", "vision_model")
PROJECTORS = ("multi_modal_projector", "connector")
CHANNELS = 3


def expected(job: Job) -> VisionTokens | None:
    """What one sample shows; None where there are no images, or they are skipped.

    Raises:
        CannotProbe: frames, or a family whose images are not known here.
    """
    vision = job.model.vision
    if vision is None or vision.tower == "skipped":
        return None
    if vision.frames:
        raise CannotProbe("the probe does not run video frames: the estimate stands in")
    found = vision_tokens(job.model)
    if found is None:
        raise CannotProbe("the probe does not know how many tokens this model makes of an image: the estimate stands in")
    return found


def tower_of(model: torch.nn.Module) -> torch.nn.Module | None:
    """The model's vision tower, without the projection behind it."""
    return next((module for name, module in model.named_modules() if name.rpartition(".")[2] in TOWERS), None)


def spared(model: torch.nn.Module, job: Job) -> list[str]:
    """Modules of a frozen tower and of the projection behind it: adapters are put on neither, whatever names or kinds of modules are targeted.

    So LLaMA-Factory (find_all_linear_modules) and ms-swift (get_multimodal_target_regex) call it frozen; plain peft adapts what it finds, which is ``trained``.
    """
    if job.model.vision is None or job.model.vision.tower != "frozen":
        return []
    roots = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in (*TOWERS, *PROJECTORS)]
    inside = tuple(f"{name}." for name in roots)
    return [name for name, module in model.named_modules() if name.startswith(inside) and not any(module.children())]


def settle(model: Any, job: Job) -> None:
    """Freeze the tower where the job does, and checkpoint it or not as the job says, whatever the text's blocks do."""
    tower = tower_of(model)
    if tower is None or job.model.vision is None:
        return
    if job.model.vision.tower == "frozen":
        tower.requires_grad_(False)
    for module in model.modules():
        if hasattr(module, "_deepstack_process"):
            module._deepstack_process = _deepstacked
        if type(module).__name__ in ("Idefics3Model", "SmolVLMModel"):
            module.get_image_features = functools.partial(_whole_parts, module)
        if type(module).__name__ == "Mistral3Model":
            module.get_image_features = functools.partial(_split_by_size, module)
    said = job.model.vision.tower_checkpointing
    for module in tower.modules():
        layer: Any = module
        if said is not None and hasattr(layer, "gradient_checkpointing"):
            layer.gradient_checkpointing = said == "full"
            if said == "full" and not hasattr(layer, "_gradient_checkpointing_func"):
                raise CannotProbe("the probe runs a checkpointed tower only beside checkpointed blocks of the text: the estimate stands in")


def _whole_parts(model: Any, pixel_values: torch.Tensor, pixel_attention_mask: Any = None, **kwargs: Any) -> Any:
    """modeling_idefics3 ``Idefics3Model.get_image_features`` where no part of an image is padding, which it asks the values of."""
    del pixel_attention_mask, kwargs
    rows, parts = pixel_values.shape[:2]
    found = pixel_values.to(dtype=model.dtype).view(rows * parts, *pixel_values.shape[2:])[torch.arange(rows * parts)].contiguous()
    seen = model.vision_model(pixel_values=found, return_dict=True)
    features = model.connector(seen.last_hidden_state)
    seen.pooler_output = [part.reshape(-1, part.shape[-1]) for part in features.split(parts)]
    return seen


def _split_by_size(model: Any, pixel_values: torch.Tensor, image_sizes: torch.Tensor, **kwargs: Any) -> Any:
    """modeling_mistral3 ``Mistral3Model.get_image_features``, which brings the sizes to the device and back for their values."""
    del kwargs
    seen = model.vision_tower(pixel_values, image_sizes=image_sizes, return_dict=True)
    features = model.multi_modal_projector(seen.last_hidden_state.squeeze(0), image_sizes).squeeze(0)
    side = model.vision_tower.patch_size * model.config.spatial_merge_size
    seen.pooler_output = features.split((image_sizes // side).prod(-1).tolist())
    return seen


def _deepstacked(hidden: torch.Tensor, places: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """modeling_qwen3_vl ``Qwen3VLTextModel._deepstack_process`` with the images' places as indices, of which a mask on meta has no number."""
    rows, columns = (torch.zeros(seen.shape[0], dtype=torch.long, device=places.device) for _ in range(2))
    hidden, seen = hidden.clone(), seen.to(hidden.dtype)
    hidden[rows, columns] = hidden[rows, columns] + seen
    return hidden


def batch(job: Job, model: Any, device: str, rows: int) -> dict[str, torch.Tensor]:
    """Token ids ``[rows, seq_len]`` with the images' places, and the images themselves, as a data loader brings them.

    Raises:
        CannotProbe: a family whose inputs are not known here.
    """
    found = expected(job)
    assert found is not None
    config, kind = model.config, model.config.model_type
    length = job.batch.seq_len or 1
    if found.tokens >= length:
        raise CannotProbe(f"{found.tokens:,} tokens of images do not fit into a sequence of {length:,}")
    with Recorder.paused():
        tokens = torch.zeros(rows, length, dtype=torch.long)
        tokens[:, : found.tokens] = config.image_token_id
        made = {"input_ids": tokens.to(device)}
        if kind in GRIDS:
            return {**made, **_gridded(job, config.vision_config, found, device, rows)}
        if kind in SPLIT:
            side, patch = _side(config.vision_config.image_size), _side(config.vision_config.patch_size)
            made["pixel_values"] = torch.zeros(rows, found.patches // (side // patch) ** 2, CHANNELS, side, side, device=device)
            return made
        if kind in TILED | SIZED:
            return {**made, **_sized(config, found, device, rows, tiled=kind in TILED)}
        if kind not in WHOLE:
            raise CannotProbe(f"the probe does not know what {kind} is given beside the text: the estimate stands in")
        side, patch = _side(config.vision_config.image_size), _side(config.vision_config.patch_size)
        images = max(1, found.patches // (side // patch) ** 2)
        made["pixel_values"] = torch.zeros(rows * images, CHANNELS, side, side, device=device)
        if kind in TYPED:
            made["token_type_ids"] = torch.zeros(rows, length, dtype=torch.long, device=device)
        return made


def _side(size: Any) -> int:
    return int(size if isinstance(size, int) else size[0])


def _sized(config: Any, found: VisionTokens, device: str, rows: int, *, tiled: bool) -> dict[str, torch.Tensor]:
    """Tiles of the largest grid and the whole image beside them; or an image of the patches that were counted."""
    side, patch = _side(config.vision_config.image_size), _side(config.vision_config.patch_size)
    if tiled:
        high, wide = max(config.image_grid_pinpoints, key=lambda pair: pair[0] * pair[1] * side + pair[0])
        shape: tuple[int, ...] = (rows, high // side * (wide // side) + 1, CHANNELS, side, side)
    else:
        high = wide = round(found.patches**0.5) * patch
        shape = (rows, CHANNELS, high, wide)
    return {"pixel_values": torch.zeros(shape, device=device), "image_sizes": torch.tensor([[high, wide]] * rows)}


def _gridded(job: Job, vision: Any, found: VisionTokens, device: str, rows: int) -> dict[str, torch.Tensor]:
    """Pixels ``[patches, channels x time x patch x patch]``, and the grid of each image, as square as its tokens allow."""
    vision_job = job.model.vision
    images = max(1, (vision_job.images if vision_job is not None else None) or 1)
    each, merge = found.tokens // images, vision.spatial_merge_size
    high = next(side for side in range(int(each**0.5) or 1, 0, -1) if each % side == 0)
    grid = torch.tensor([[1, high * merge, each // high * merge]] * (images * rows))
    row = CHANNELS * vision.temporal_patch_size * vision.patch_size**2
    return {
        "pixel_values": torch.zeros(int(grid.prod(-1).sum()), row, device=device),
        "image_grid_thw": grid,
        "position_ids": torch.zeros(3, rows, job.batch.seq_len or 1, dtype=torch.long, device=device),
    }
