"""How the user's own program is written: whose loop it runs, whether its settings are flags, whether it trains on images.

Each finding is a key ``code.<what>`` of the evidence beside the config's keys; what it means for the lines of a plan is said in
:mod:`advisor.program`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.architecture import presets
from advisor.reading.configs.parsed import Parsed
from advisor.reading.pattern import pattern

_LIGHTNING = pattern(r"^(?:pytorch_lightning|lightning)(?:\.|$)")  # lightning.fabric too: the user's own loop, told apart by its backward call
_TRAINERS = pattern(r"(?:^|\.)\w*Trainer$")
_OWN_STEP = pattern(r"(?:^|\.)(?:backward|manual_backward)$")
_FSDP1 = pattern(r"(?:^|\.)(?:FSDP|FullyShardedDataParallel)$")
_BY_HAND = pattern(r"(?:^|\.)(?:wrap|enable_wrap|auto_wrap|apply_fsdp\w*|partial)$")
_WRAPS = pattern(r"(?:^|\.)(?:FSDP|FullyShardedDataParallel|fully_shard|DistributedDataParallel|DDP)$")
# Families of image models as their libraries name them: torchvision.models, timm, diffusers, transformers' image classes, mmdetection's launchers.
_IMAGE_CALL = pattern(
    r"^(?:torchvision\.)?models\.(?:\w+\.)?(?:resnet|resnext|wide_resnet|vgg|densenet|efficientnet|mobilenet|convnext|regnet|vit_|swin|inception|maxvit)\w*$|"
    r"^timm\.create_model$|(?:UNet2D|AutoencoderKL|Transformer2D|FluxTransformer|SD3Transformer|StableDiffusion|DiffusionPipeline)\w*|"
    r"(?:ForImageClassification|ForObjectDetection|ForSemanticSegmentation|ForMaskedImageModeling)(?:\.from_pretrained)?$|"
    r"^(?:resnet|vgg|densenet|vit_)\w*\d+\w*$"
)
_IMAGE_PROGRAM = pattern(
    r"text_to_image|train_dreambooth|train_controlnet|textual_inversion|instruct_pix2pix|train_unconditional|image_classification|imagenet"
)
_DIFFUSION = pattern(r"stable-diffusion|sdxl|FLUX|text_to_image|dreambooth|controlnet|textual_inversion|pix2pix|UNet2D|Diffusion|Transformer2D|AutoencoderKL")
_IMAGE_NAME = pattern(
    r"stable-diffusion|(?:^|/)sdxl|FLUX\.1|^(?:microsoft/|facebook/|google/)?(?:resnet|convnext|vit|deit|dinov\d|swin)[-_]|^(?:vit|resnet|convnext|swin|efficientnet)_?\w*\d",
    re.IGNORECASE,
)
_TEXT_CALL = pattern(r"For(?:CausalLM|ConditionalGeneration|Seq2SeqLM|MaskedLM|ImageTextToText|Vision2Seq)\b")
_NO_LOOP = frozenset({None, "torch", "fsdp", "transformers", "peft", "bitsandbytes", "launch"})  # layers that train nothing by themselves
_NAMED = frozenset({"model_name_or_path", "pretrained_model_name_or_path", "pretrained", "model", "model_name", "arch"})
_SELF_MODEL = pattern(r"^\s*(self\.\w+|[A-Za-z_]\w*)\s*(?::[^=]+)?=\s*(?:\w+\.)*\w+\.from_pretrained\(")
_PYTHON_PROGRAM = pattern(r"\.py$|^(?:trl|accelerate)\b")


def findings(parsed: Parsed, framework: str | None) -> Iterator[tuple[int, str, str]]:
    """``(line, key, value)``: ``code.loop`` lightning or own, ``code.variable`` the name of the model's variable, ``code.flags``, ``code.images``."""
    names = [(call, line) for call, line, _ in parsed.calls]
    if parsed.form in ("python", "notebook"):
        loop = _loop(parsed, names, framework)
        if loop is not None:
            yield loop[1], "code.loop", loop[0]
        wrapped = [line for call, line in names if _FSDP1.search(call)]
        if len(set(wrapped)) == 1 and not any(k.path == "auto_wrap_policy" for k in parsed.keys) and not any(_BY_HAND.search(call) for call, _ in names):
            yield wrapped[0], "code.one-unit", "FSDP without auto_wrap_policy"
        for _, line, text in parsed.calls:
            if (match := _SELF_MODEL.match(text)) is not None and "okenizer" not in text and "rocessor" not in text:
                yield line, "code.variable", match.group(1)
                break
    elif parsed.form == "shell":
        for program, line, _ in parsed.programs:
            if _PYTHON_PROGRAM.search(program.split(" ")[0]) or program.startswith("trl "):
                yield line, "code.flags", program
                break
    image = _image(parsed, names)
    if image is not None and not any(_TEXT_CALL.search(call) for call, _ in names):
        yield image[0], "code.images", _library(parsed, image[1])


def _library(parsed: Parsed, named: str) -> str:
    """Whose model it is: each library has a switch of its own for recomputing blocks."""
    for library, sign in (("timm", "timm."), ("diffusers", "diffusers"), ("torchvision", "torchvision")):
        if named.startswith(sign) or any(name.partition(".")[0] == library for name in parsed.imports):
            return library
    return "diffusers" if _DIFFUSION.search(named) else "images"


def _loop(parsed: Parsed, names: list[tuple[str, int]], framework: str | None) -> tuple[str, int] | None:
    steps = next((line for call, line in names if _OWN_STEP.search(call)), None)
    if any(_LIGHTNING.search(name) for name in parsed.imports):
        fits = next((line for call, line in names if call.rsplit(".", 1)[-1] == "Trainer"), None)
        if fits is not None or steps is None:
            return "lightning", fits or 1
    if framework not in _NO_LOOP or any(_TRAINERS.search(call) for call, _ in names):
        return None
    wraps = next((line for call, line in names if _WRAPS.search(call)), None)
    return ("own", steps or wraps or 1) if steps is not None or wraps is not None else None


def _image(parsed: Parsed, names: list[tuple[str, int]]) -> tuple[int, str] | None:
    for call, line in names:
        if _IMAGE_CALL.search(call):
            return line, call
    named = [(key.line, key.value) for key in parsed.keys if key.path.rsplit(".", 1)[-1] in _NAMED and isinstance(key.value, str)]
    if any(presets.find(name) is not None for _, name in named):  # the known models are language models, whatever the program is called
        return None
    for program, line, _ in parsed.programs:
        if _IMAGE_PROGRAM.search(program):
            return line, program
    return next(((line, name) for line, name in named if _IMAGE_NAME.search(name)), None)
