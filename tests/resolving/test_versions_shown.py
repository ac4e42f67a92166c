"""Versions that nobody wrote, from the form of PyTorch's message and from frames that only some releases of transformers have."""

from __future__ import annotations

import pytest

from advisor.reading import read
from advisor.resolving.versions_shown import bounds
from advisor.run import resolve

OLD = (
    "CUDA out of memory. Tried to allocate 112.00 MiB (GPU 0; 79.15 GiB total capacity; 77.98 GiB already allocated; 58.38 MiB free; "
    "78.02 GiB reserved in total by PyTorch)"
)
MISSPELT = "CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacty of 79.15 GiB of which 58.38 MiB is free."
NEW = "CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 58.38 MiB is free."
SCRIPT = (
    "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
    'model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1")\n'
    'args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True)\n'
)


def _trace(*frames: tuple[str, str, str]) -> str:
    lines = [f'  File "/usr/lib/python3/site-packages/{file}", line 1, in {function}\n    {code}\n' for file, function, code in frames]
    return f"Traceback (most recent call last):\n{''.join(lines)}torch.OutOfMemoryError: {NEW}\n"


@pytest.mark.parametrize(
    ("message", "expected"),
    [(OLD, {"torch": "<2.1", "transformers": "<4.52"}), (MISSPELT, {"torch": "<2.2", "transformers": "<5"}), (NEW, {})],
)
def test_the_form_of_the_message(message: str, expected: dict[str, str]) -> None:
    assert dict(bounds(read([("e.txt", f"RuntimeError: {message}\n")]).evidence)) == expected


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (("transformers/trainer.py", "training_step", "loss = self.compute_loss(model, inputs)"), "<4.46"),
        (("transformers/trainer.py", "training_step", "loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)"), ">=4.46"),
        (
            ("transformers/integrations/sdpa_attention.py", "sdpa_attention_forward", "attn_output = torch.nn.functional.scaled_dot_product_attention("),
            ">=4.48",
        ),
        (("transformers/modeling_utils.py", "_load_state_dict_into_meta_model", "set_module_tensor_to_device("), "<5"),
        (("transformers/core_model_loading.py", "convert_and_load_state_dict_in_model", "realized_value = mapping.convert("), ">=5"),
    ],
)
def test_frames_that_only_some_releases_have(frame: tuple[str, str, str], expected: str) -> None:
    assert dict(bounds(read([("e.txt", _trace(frame))]).evidence))["transformers"] == expected


def test_weights_are_fp32_where_the_message_is_too_old_for_a_release_that_keeps_the_checkpoints_dtype() -> None:
    reading = read([("train.py", SCRIPT), ("e.txt", f"RuntimeError: {OLD}\n")])
    run = resolve(reading.job, reading.evidence)
    assert run.job.precision.weights == "fp32"
    assert "<4.52" in (run.facts["precision.weights"].why or "")
    assert run.job.activations.attention == "eager"
    newer = read([("train.py", SCRIPT), ("e.txt", f"RuntimeError: {NEW}\n")])
    assert resolve(newer.job, newer.evidence).job.precision.weights == "bf16"


def test_a_version_that_is_written_decides_before_what_a_text_shows() -> None:
    reading = read([("train.py", SCRIPT), ("requirements.txt", "transformers==5.1.0\n"), ("e.txt", f"RuntimeError: {OLD}\n")])
    assert resolve(reading.job, reading.evidence).job.precision.weights == "bf16"
