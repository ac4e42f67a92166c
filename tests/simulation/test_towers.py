"""Models that see, small: a trained tower, a frozen one, one with adapters, checkpointed or not: the estimate against the probe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest

from advisor.arithmetic import estimate
from advisor.job import read_job
from advisor.run import Run, resolve
from advisor.simulation.probing import asked_of
from advisor.simulation.sessions import Session

transformers = pytest.importorskip("transformers", minversion="5.24", reason="the models are those of transformers 5.24")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

SECONDS = 120
WITHIN = 0.05  # of models this small, where what is not counted (positions, masks, norms behind the tower) weighs more than in whole ones
TEXT = {"num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192}
TOWER = {"num_hidden_layers": 4, "depth": 4}
PLACES = {"image_token_id": 8001, "image_token_index": 8001, "video_token_id": 8002}
TILED = ("internvl", "llava_next", "idefics3", "smolvlm", "mistral3")  # up to 3,328 tokens an image
KINDS = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "llava_next", "paligemma", "gemma3", "internvl", "idefics3", "smolvlm", "mistral3"]
LORA = {"kind": "lora", "rank": 16, "targets": "all-linear", "adapter_dtype": "bf16"}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session() as open_session:
        yield open_session


def config(kind: str) -> dict[str, Any]:
    """A family's defaults with two layers of text and four of the tower."""
    cls = transformers.CONFIG_MAPPING[kind]
    known = json.loads(cls().to_json_string(use_diff=False))
    text, tower = known["text_config"], known["vision_config"]
    text.update({name: value for name, value in TEXT.items() if name in text})
    text.pop("layer_types", None)
    for section in (known, text):
        section.update({name: 7 for name, value in section.items() if name.endswith("token_id") and isinstance(value, int) and value >= 8192})
    tower.update({name: value for name, value in TOWER.items() if name in tower})
    if kind == "qwen2_5_vl":
        tower.update(hidden_size=1280, intermediate_size=3420, out_hidden_size=1024)  # as published; the class's own is as wide as the 7B's text
    if kind == "idefics3":
        tower.update(image_size=364, patch_size=14, hidden_size=1152, intermediate_size=4304, num_attention_heads=16)
        known["scale_factor"] = 2
    if kind == "smolvlm":
        tower.update(image_size=512, patch_size=16, hidden_size=768, intermediate_size=3072, num_attention_heads=12)
        known["scale_factor"] = 4
    if kind == "mistral3":
        text["head_dim"] = 128
    if kind == "qwen3_vl":
        tower.update(hidden_size=1024, intermediate_size=4096, num_heads=16, out_hidden_size=1024, deepstack_visual_indexes=[1, 2])
        text["head_dim"] = 128
    if kind == "gemma3":
        tower.update(image_size=896, patch_size=14, hidden_size=1152, intermediate_size=4304, num_attention_heads=16, vision_use_head=False)  # as published
    if kind == "qwen2_vl":
        tower["hidden_size"] = 1024  # of what the tower gives
    known.update({name: value for name, value in PLACES.items() if name in known})
    made = cls(**{name: value for name, value in known.items() if name not in ("transformers_version", "architectures", "model_type")})
    return {**json.loads(made.to_json_string(use_diff=False)), "model_type": kind}


def run_of(kind: str, tower: str, method: dict[str, Any], checkpointing: str) -> Run:
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "peft", "accelerate")}
    job: dict[str, Any] = {
        "version": 1, "model": {"config": config(kind), "vision": {"tower": tower, "images": 1}}, "method": method,
        "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"}, "optimizer": {"name": "adamw", "implementation": "foreach"},
        "batch": {"micro_batch": 1, "seq_len": 4096 if kind in TILED else 2048, "packed": True},
        "activations": {"checkpointing": checkpointing, "attention": "sdpa"},
        "hardware": {"gpu": "h100-80gb"}, "framework": {"name": "hf-trainer", "versions": versions},
    }  # fmt: skip
    return resolve(read_job(job))


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("trained", {"kind": "full"}, "none"), ("trained", {"kind": "full"}, "full"), ("frozen", {"kind": "full"}, "none"), ("frozen", {"kind": "full"}, "full"),
    ("trained", LORA, "none"), ("frozen", LORA, "none"), ("frozen", LORA, "full"), ("trained", LORA, "full"),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tower", "method", "checkpointing"), CASES)
def test_estimate_and_probe_agree(kind: str, tower: str, method: dict[str, Any], checkpointing: str, session: Session) -> None:
    run = run_of(kind, tower, method, checkpointing)
    probed = asked_of(session, run, timeout=SECONDS, say=lambda _: None).ledger
    assert estimate(run).peak().bytes == pytest.approx(probed.peak().bytes, rel=WITHIN)


def test_a_tower_that_is_frozen_has_neither_states_nor_adapters() -> None:
    whole, frozen = (estimate(run_of("qwen2_vl", tower, {"kind": "full"}, "full")).by_part("step.update") for tower in ("trained", "frozen"))
    assert frozen["optimizer"] < 0.6 * whole["optimizer"]
    adapted, text_alone = (estimate(run_of("qwen2_vl", tower, LORA, "full")).by_part("step.update") for tower in ("trained", "frozen"))
    assert 0 < text_alone["optimizer"] < 0.6 * adapted["optimizer"]


def test_images_of_all_of_a_step_s_micro_batches_are_on_the_card() -> None:
    def pixels(versions: dict[str, str], **framework: Any) -> int:
        run = run_of("qwen2_vl", "frozen", LORA, "full").but(batch={"gradient_accumulation": 8}, framework={"versions": versions, **framework})
        return next(h.bytes for h in estimate(run).alive("backward.last-block") if h.name == "pixels")

    each = pixels({"transformers": "4.45.0"})
    assert each == pixels({"transformers": "5.24.0"}, name="custom")
    assert pixels({"transformers": "4.46.0"}) == 8 * each  # trainer.py get_batch_samples


def test_a_mask_that_joins_images_both_ways_is_held_all_step_long() -> None:
    alive = estimate(run_of("gemma3", "frozen", LORA, "full")).alive("loss.backward")
    assert [h.bytes for h in alive if h.name == "attention mask"] == [2048 * 2048]  # truth values


def test_pixtral_s_mask_is_narrowed_by_each_call_under_autocast(session: Session) -> None:
    run = run_of("mistral3", "frozen", {"kind": "full"}, "full").but(precision={"weights": "fp32", "compute": "bf16", "mixed": "autocast"})
    probed = asked_of(session, run, timeout=SECONDS, say=lambda _: None).ledger
    assert estimate(run).peak().bytes == pytest.approx(probed.peak().bytes, rel=WITHIN)


def test_pixtral_s_mask_is_the_square_of_all_patches_of_the_batch() -> None:
    def mask(images: int) -> int:
        run = run_of("mistral3", "trained", LORA, "full").but(model={"vision": {"tower": "trained", "images": images, "tokens": None}})
        return next(h.bytes for h in estimate(run).alive("backward.root") if h.name == "mask that keeps images apart")

    assert mask(2) == 4 * mask(1)
