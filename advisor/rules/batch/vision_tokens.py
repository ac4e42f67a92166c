"""Images expand to far more tokens than the text."""

from __future__ import annotations

import re

from advisor.architecture import ConfigError
from advisor.architecture.vision_tokens import pixels_of_token, vision_tokens
from advisor.evidence import Evidence
from advisor.job import Model, Vision
from advisor.reading.pattern import pattern
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import in_phase
from advisor.run import Run


def _applies(run: Run, _evidence: Evidence) -> str | None:
    shape = run.architecture
    if shape is None or shape.vision or run.job.model.vision is not None:
        return None
    return "the model reads no images"


_OF_NAME = (
    (pattern(r"Qwen2(?:\.5)?-VL", re.IGNORECASE), 28 * 28),  # patch 14, merged 2 x 2 (image_processing_qwen2_vl.py smart_resize factor 28)
    (pattern(r"Qwen3-VL", re.IGNORECASE), 32 * 32),  # patch 16, merged 2 x 2 (configuration_qwen3_vl.py)
)  # of models that are known by their name alone


_SIZED_IMAGES = pattern(
    r"\b(?:large|big|high[- ]res\w*|full[- ]size\w*|4k)\b[^.?!,]{0,12}\b(?:images?|pictures?|photos?|videos?)\b|"
    r"\b(?:images?|pictures?|photos?) of \d{3,5} ?[x\u00d7] ?\d{3,5}|"
    r"\b\d{4,5} ?[x\u00d7] ?\d{4,5} (?:images?|pictures?|photos?|pixels?)|(?:大图|高分辨率)",
    re.IGNORECASE,
)


_SEES = pattern(r"[-_ ]VL\b|\bVLMs?\b|llava|internvl|vision tower|multi-?modal|多模态|pixtral|idefics|paligemma", re.IGNORECASE)


def _told(run: Run, evidence: Evidence) -> str | None:
    """Someone tells of large images beside a failure of a training step."""
    if evidence.failure is None or in_phase(evidence, "load", "resume", "save", "merge"):
        return None
    if not (run.job.model.vision or (run.architecture is not None and run.architecture.vision) or any(_SEES.search(line.text) for line in evidence.lines)):
        return None  # a model of images alone, or one that nobody names
    hit = next((line for line in evidence.lines if len(line.text) <= 600 and _SIZED_IMAGES.search(line.text)), None)
    return f"large images are spoken of ({hit.where})" if hit is not None else None


def _bound(evidence: Evidence) -> tuple[str, int] | None:
    """The most pixels that an image may keep, as a config says, and where."""
    keys = ("max_pixels", "image_max_pixels", "video_max_pixels")
    found = [(where, str(value)) for where, key, value in evidence.seen_keys if key.rpartition(".")[2].lower() in keys]
    return next(((where, int(value)) for where, value in found if re.fullmatch(r"[0-9]{1,12}", value)), None)


def _pixels_a_token(run: Run) -> int | None:
    try:
        known = pixels_of_token(run.job.model)
    except ConfigError:
        known = None
    return known or next((pixels for name, pixels in _OF_NAME if name.search(run.job.model.name or "")), None)


def _at_most(run: Run) -> int | None:
    """Tokens of one image at most, where the processor cuts images by a rule of its own."""
    try:
        found = vision_tokens(Model(name=run.job.model.name, config=run.job.model.config, vision=Vision(images=1)))
    except ConfigError:
        return None
    return found.tokens if found is not None and _pixels_a_token(run) is None else None


def _loose(run: Run, evidence: Evidence) -> str | None:
    """A bound that lets one image become as many tokens as a whole sequence has, or more."""
    bound, length, pixels = _bound(evidence), run.job.batch.seq_len, _pixels_a_token(run)
    if length is None:
        return None
    if bound is not None and pixels is not None and bound[1] // pixels >= length:
        return f"one image may become {bound[1] // pixels:,} tokens, where a sequence has {length:,} ({bound[0]}: {bound[1]:,} pixels)"
    tokens = _at_most(run)
    if tokens is not None and tokens >= length:
        return f"one image may become {tokens:,} tokens as its processor cuts it, where a sequence has {length:,}"
    return None


def _unbounded(run: Run, evidence: Evidence) -> str | None:
    vision, shape = run.job.model.vision, run.architecture
    if shape is None or not shape.vision or _bound(evidence) is not None or _at_most(run) is not None:
        return None
    if vision is None or (vision.max_pixels is None and vision.tokens is None):
        return "nothing bounds how many tokens an image becomes"
    return None


def _many(run: Run, _evidence: Evidence) -> str | None:
    vision, length = run.job.model.vision, run.job.batch.seq_len
    if vision is None or not vision.tokens or not length:
        return None
    return f"{vision.tokens:,} of {length:,} tokens are images" if vision.tokens > 0.5 * length else None


_IMAGE_MODELS = pattern(r"^(timm|torchvision|mmcv|mmdet|mmseg|mmpretrain|detectron2|ultralytics|diffusers)/")
_LANGUAGE = pattern(r"^(transformers|trl|peft|llava|swift|megatron|vllm|unsloth\w*)/")


def _images_alone(evidence: Evidence) -> bool:
    """Whether a model of images without any language model runs: its tokens are no addition to a text."""
    files = [frame.file for frame in evidence.frames]
    return any(_IMAGE_MODELS.search(file) for file in files) and not any(_LANGUAGE.search(file) for file in files)


RULE = Rule(
    id="vision-tokens",
    tier="batch",
    title="Images or video become far more tokens than the text",
    cleared="The model reads no images, or they are few tokens.",
    prior=-1.2,
    applies=_applies,
    explains=("forward", "loss", "backward"),
    marks=(
        Mark(
            "vision-tokens-told",
            2.8,
            "large images fail where small ones do not, as is written",
            "transformers image processors of Qwen-VL, LLaVA-NeXT, InternVL: patches grow with the pixels of an image unless max_pixels bounds them",
            when=_told,
        ),
        Mark("vision-tokens-unbounded", 1.2, "unbounded", "Qwen2-VL processors: max_pixels decides the tokens of an image", when=_unbounded),
        Mark(
            "vision-tokens-loose",
            3.0,
            "a bound that binds nothing",
            "tokens of an image = pixels / (patch x merge)²; tiles: each processor's own rule",
            when=_loose,
        ),
        Mark("vision-tokens-many", 2.0, "mostly images", "tokens of an image = pixels / (patch x merge)²", when=_many),
        Mark(
            "vision-tokens-blocks",
            4.0,
            "a block of the vision tower is running: its scores and activations grow with the image's patches",
            (
                "transformers modeling_qwen2_vl / modeling_qwen2_5_vl vision blocks: blk(hidden_states, cu_seqlens=...), attention_mask + "
                "matmul(q, k.transpose(1, 2))"
            ),
            pattern=r"modeling_\w*vl\w*\.py:forward: .*(\bblk\(|matmul\(q, k\.transpose\(1, 2\)\))|cu_seqlens\s*=\s*cu_seqlens",
            when=lambda _, e: None if in_phase(e, "load", "resume", "save") else "",
            on="frame",
        ),
        Mark(
            "vision-tokens-frame",
            3.5,
            "the vision tower is running",
            "transformers modeling_*vl*.py VisionTransformer.forward, get_image_features; siglip, clip towers",
            pattern=r"self\.visual\(|get_(image|video)_features|vision_tower\(|[Vv]ision(_)?\w*(Attention|Block|Transformer|Mlp|MLP|tower)|image_embeds|patch_embed|pixel_values|vision_model\(|"
            r"modeling_(siglip|clip|intern_?vit|eva|vit|pixtral|mllama_vision)\w*\.py:forward|(?:clip|siglip|intern_vit)_encoder",
            when=lambda _, e: None if in_phase(e, "load", "resume", "save") or _images_alone(e) else "",
            on="frame",
        ),
    ),
    remedies=("cap-vision-tokens", "smaller-micro-batch", "shorter-sequence"),
    fires=(
        Example("told in words", text="Fine-tuning a VLM on full-size photos is OOM in forward at batch size 1, with thumbnails it trains well.\n"),
        Example(
            "a bound of 67 megapixels",
            text="model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct\nstage: sft\nfinetuning_type: lora\ntemplate: qwen2_vl\ncutoff_len: 8192\n"
            "image_max_pixels: 67108864\nper_device_train_batch_size: 1\n" + oom("5.20 GiB", allocated=74.0, free=3.0),
        ),
        Example(
            "a large picture",
            job=job("Qwen/Qwen2.5-VL-7B-Instruct", batch="{micro_batch: 1, seq_len: 8192}", activations="{checkpointing: full}"),
            text=trace(
                "transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py|get_image_features|image_embeds = self.visual(pixel_values, grid_thw=image_grid_thw)",
                "transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py|forward|hidden_states = self.patch_embed(hidden_states)",
            )
            + oom("5.20 GiB", allocated=74.0, free=3.0),
        ),
        Example(
            "a block of the tower without a fused kernel",
            job=job("Qwen/Qwen2-VL-2B-Instruct", batch="{micro_batch: 1, seq_len: 2048}", activations="{checkpointing: full}"),
            text=trace(
                "transformers/models/qwen2_vl/modeling_qwen2_vl.py|forward|hidden_states = blk(",
                "transformers/models/qwen2_vl/modeling_qwen2_vl.py|forward|attn_weights = attention_mask + torch.matmul(q, k.transpose(1, 2))",
            )
            + oom("15.31 GiB", allocated=10.7, capacity=23.64, free=12.2),
        ),
    ),
    quiet=(Example("a text model", job=job(), text=oom("512.00 MiB", allocated=76.5)),),
)
