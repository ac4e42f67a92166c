"""Cards that people name in passing: beside settings, in Chinese, with the processes of a launch in the middle of a line."""

from __future__ import annotations

import pytest

from advisor.reading import read

SCRIPT = "from trl import SFTConfig\ncfg = SFTConfig(per_device_train_batch_size=2, max_length=1024)\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB. GPU 0 has a total capacity of 44.39 GiB of which 11.02 GiB is free.\n"


@pytest.mark.parametrize(
    ("line", "gpu", "count"),
    [
        ("model = Qwen/Qwen2.5-1.5B-Instruct, 1x L40S 48GB", "l40s-48gb", 1),
        ("大佬们好，我用两张A800 80G 全量微调 Qwen2.5-14B-Instruct，一直爆显存", "a100-80gb", 2),
        ("MI250X, 8 GCDs, torchrun --nproc_per_node=8 resume.py --ckpt last.pt", "mi250x-64gb", 8),
    ],
)
@pytest.mark.parametrize("around", ["", SCRIPT])
def test_a_card_is_taken_where_it_is_named(line: str, gpu: str, count: int, around: str) -> None:
    hardware = read([("paste.txt", f"{line}\n\n{around}")]).job.hardware
    assert (hardware.gpu, hardware.gpus_per_node) == (gpu, count)


def test_it_wins_over_a_guess_from_the_total() -> None:
    text = f"{OOM}\nmodel = Qwen/Qwen2.5-1.5B-Instruct, 1x L40S 48GB\n\n{SCRIPT}"
    fact = next(f for f in read([("paste.txt", text)]).evidence.facts if f.field == "hardware.gpu")
    assert (fact.value, fact.where) == ("l40s-48gb", "paste.txt:3")


@pytest.mark.parametrize("line", ["run_name = 'llama-8xA100-test'", "output_dir=/data/A100/run", "tokenizer = models/T4-small"])
def test_a_name_or_a_path_is_no_card(line: str) -> None:
    assert read([("paste.txt", f"{SCRIPT}{line}\n")]).job.hardware.gpu is None
