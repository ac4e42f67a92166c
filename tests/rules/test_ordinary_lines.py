"""Lines of ordinary logs and traces that look like a cause, and the ones beside them that show it."""

import re

import pytest

from advisor.evidence import Evidence
from advisor.job import Job
from advisor.reading import read
from advisor.rules.batch import batch_outlier
from advisor.rules.copies import resume_on_device
from advisor.rules.fallback import quantization_not_applied
from advisor.rules.rule import Rule
from advisor.rules.shard import communication_buffers
from advisor.rules.situation import builds_second
from advisor.run import resolve

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


def evidence(text: str) -> Evidence:
    return read([("train.log", text)]).evidence


def told(rule: Rule, mark: str, found: Evidence) -> bool:
    """Whether a mark that looks at the evidence alone finds what it looks for."""
    when = next(m.when for m in rule.marks if m.id == mark)
    assert when is not None
    return when(resolve(Job(), found), found) is not None


def trace(code: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    {code}\n{OOM}'


@pytest.mark.parametrize(
    ("line", "memory"),
    [
        ("step 1 0.53, step 2 0.51, step 3 0.49 (card 80 GB)", 0),  # losses
        ("epoch 1 90, epoch 2 91, epoch 3 92 on 24 GB", 0),
        ("batch 8 12 GB, batch 16 14 GB, batch 32 19 GB", 0),  # sizes that were tried
        ("step 100 30.1GB, step 200 30.9, step 300 31.8", 3),
        ("Using device: cuda\nepoch 1: 0.69\nepoch 2: 0.61\nepoch 3: 0.55\nepoch 4: 0.50", 0),
        ("memory\nstep 1: 2100\nstep 2: 2200\nstep 3: 2300\nstep 4: 2400", 4),
        ("cuda\nstep 1  2.1 GiB\nstep 2  2.2 GiB\nstep 3  2.3 GiB\nstep 4  2.4 GiB", 4),
    ],
)
def test_a_row_is_of_memory_where_a_unit_or_a_heading_says_so(line: str, memory: int) -> None:
    assert len(evidence(line + "\n").samples) == memory


@pytest.mark.parametrize(
    ("line", "skewed"),
    [
        ("step time: mean 0.31 s, max 2.1 s", False),  # how fast it goes
        ("tokens/s: mean 310, max 1280", False),
        ("clip durations: mean 12 s, max 60 s", True),
    ],
)
def test_the_longest_sample_is_none_of_speed(line: str, skewed: bool) -> None:
    assert told(batch_outlier.RULE, "batch-outlier-lengths", evidence(line + "\n")) == skewed


@pytest.mark.parametrize(
    ("code", "second"),
    [
        ("trainer = DPOTrainer(model=model, ref_model=None, args=args)", False),
        ("if ref_model == model:", False),
        ("refined_model = build(model)", False),
        ("self.ref_model = AutoModelForCausalLM.from_pretrained(path)", True),
        ("ref_model = create_reference_model(model)", True),
    ],
)
def test_a_second_model_is_one_that_is_made(code: str, second: bool) -> None:
    assert builds_second(evidence(trace(code))) == second


@pytest.mark.parametrize(
    ("label", "more"),
    [
        ("after loading checkpoint", True),
        ("after resuming", True),
        ("after loading model", False),  # the first start's own
        ("after offload of the batch", False),
    ],
)
def test_more_is_held_after_a_checkpoint_was_loaded(label: str, more: bool) -> None:
    steps = "".join(f"step {n}: allocated 10.0 GiB\n" for n in (1, 2, 3))
    assert told(resume_on_device.RULE, "resume-on-device-more-after", evidence(f"{steps}{label}: allocated 20.0 GiB\n{OOM}")) == more


@pytest.mark.parametrize(
    ("code", "joined"),
    [
        ("flat = torch.cat([p.grad.view(-1) for p in params])", True),
        ("x = torch.cat(outputs)  # under no_grad", False),
    ],
)
def test_gradients_are_joined_where_gradients_are(code: str, joined: bool) -> None:
    mark = next(m for m in communication_buffers.RULE.marks if m.id == "communication-buffers-joined")

    assert (re.search(mark.pattern or "", code) is not None) == joined


@pytest.mark.parametrize(
    ("said", "same"),
    [
        ("I train with QLoRA and the same batch size as before", False),
        ("In 4-bit it runs on the same data without trouble", False),
        ("In 4-bit it takes the same memory as in bf16", True),
        ("With load_in_4bit memory is the same as without", True),
    ],
)
def test_what_is_the_same_with_quantisation_is_memory(said: str, same: bool) -> None:
    assert told(quantization_not_applied.RULE, "quantization-not-applied-same", evidence(f"{said}\n{OOM}")) == same
