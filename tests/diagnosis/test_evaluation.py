"""A failure in an evaluation that no setting describes is answered with what to set."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.rules.samples import oom, trace

SCRIPT = (
    'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")\n'
    "args = SFTConfig(per_device_train_batch_size=4, max_length=4096, bf16=True)\ntrainer = SFTTrainer(model=model, args=args)\ntrainer.train()\n"
)
TRAINER = trace(
    "transformers/trainer.py|evaluation_loop|all_preds.add(logits)", "transformers/trainer_pt_utils.py|torch_pad_and_concatenate|return torch.cat((a, b))"
)
OWN = trace("train.py|evaluate|scores = torch.cat(all_preds)")


@pytest.mark.parametrize(
    ("frames", "lines"), [(TRAINER, ("eval_accumulation_steps", "preprocess_logits_for_metrics", "prediction_loss_only")), (OWN, (".argmax(dim=-1).cpu()",))]
)
def test_predictions_that_gather_have_a_step_with_lines(frames: str, lines: tuple[str, ...]) -> None:
    report = diagnose([("error.txt", frames + oom("18.55 GiB", allocated=72.1)), ("train.py", SCRIPT)])
    assert report.findings[0].cause == "eval-accumulation"
    told = " ".join(line for of in report.plan.steps[0].settings.values() for line in of)
    assert all(line in told for line in lines)
    assert "what could not be told" not in report.plan.summary
