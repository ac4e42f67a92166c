"""Sums and identities that decide between causes, each with the figures that show it and figures that must not."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.report import Report
from advisor.rules.samples import job, oom, trace


def _of(*texts: str) -> Report:
    return diagnose([(f"part{n}.txt", text) for n, text in enumerate(texts)])


def _share(report: Report, *causes: str) -> float:
    return sum(f.confidence for f in report.findings if f.cause in causes)


@pytest.mark.parametrize("own", [0.0, 17179869184.0])
def test_a_process_of_which_nvml_does_not_know_is_no_other_tenant(own: float) -> None:
    """WSL and some containers: 0, or NVML_VALUE_NOT_AVAILABLE in GiB."""
    assert _share(_of(oom("896.00 MiB", allocated=20.52, unallocated=0.1, free=0.74, capacity=21.99, own=own)), "other-process") < 0.1
    assert _of(oom("896.00 MiB", allocated=6.5, unallocated=0.1, free=0.74, capacity=21.99, own=7.1)).findings[0].cause == "other-process"


def test_what_is_larger_than_all_that_is_held_was_not_collected() -> None:
    when = "The memory problem comes in the evaluation, training is fine.\n"
    giant = _of(when + oom("23.11 GiB", allocated=1.54, free=20.8, capacity=23.7))
    assert giant.phase == "eval" and giant.findings[0].cause == "eval-batch" and _share(giant, "eval-accumulation") < 0.1
    assert _share(_of(when + oom("8.00 GiB", allocated=18.0, free=4.0, capacity=23.7)), "eval-accumulation") > 0.3


def test_a_card_that_is_full_while_the_model_is_divided_holds_it_whole() -> None:
    frames = trace(
        "train.py|main|model = FSDP(model)",
        "torch/distributed/fsdp/fully_sharded_data_parallel.py|__init__|_init_param_handle_from_module(",
        "torch/distributed/fsdp/_flat_param.py|shard|sharded_flat_param, numel_padded = FlatParamHandle._get_shard(",
    )
    launch = "torchrun --nproc_per_node 8 train.py\n"
    full = _of(launch + frames + oom("1.36 GiB", allocated=21.73, free=1.36, capacity=23.65))
    assert full.findings[0].cause == "moved-before-sharding"
    empty = _of(launch + frames + oom("1.36 GiB", allocated=3.0, free=1.36, capacity=23.65))
    assert _share(empty, "moved-before-sharding") < 0.5


def test_a_request_of_thousands_of_tokens_is_what_a_block_makes() -> None:
    request = job("mistralai/Mistral-7B-v0.1", method="{kind: lora, rank: 8}", precision="{weights: bf16}", hardware="{gpu: a10-24gb}")
    said = [s.says for f in _of(request, oom("896.00 MiB", allocated=20.5, free=0.7, capacity=21.99)).findings for s in f.evidence]
    assert any("32,768 tokens x MLP width 14,336" in sentence for sentence in said)
    said = [s.says for f in _of(request, oom("890.00 MiB", allocated=20.5, free=0.7, capacity=21.99)).findings for s in f.evidence]
    assert not any("MLP width" in sentence for sentence in said)


def test_the_hosts_memory_told_in_words() -> None:
    said = "The GPU memory peaks at 14GB per card, but the system RAM quickly reaches 500GB, which ends in an out of memory error."
    assert _of(said).findings[0].cause == "host-memory"
    assert not _of("The system RAM reaches 500GB, and the GPU is at 14GB per card.").findings


def test_a_killed_process_is_not_a_full_card() -> None:
    settings = "per_device_train_batch_size: 2\ngradient_checkpointing: false\nmodel_name_or_path: mistralai/Mistral-7B-v0.1\nmax_seq_length: 4096\n"
    killed = _of(settings, "[ERROR] [launch.py:322:sigkill_handler] ['/usr/bin/python', 'train.py'] exits with return code = -9\n")
    assert killed.findings[0].cause == "host-memory"


RESNET = trace(
    "train.py|<module>|loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())", "torchvision/models/resnet.py|forward|out = self.bn3(out)"
)


def test_a_loss_whose_argument_is_still_computed_is_not_the_failing_one() -> None:
    full = oom("1.53 GiB", allocated=21.9, capacity=23.64, free=1.1)
    assert _share(_of(RESNET + full), "logits") < 0.1
    assert _of(trace("train.py|<module>|loss = torch.nn.functional.cross_entropy(logits, y)") + full).findings[0].cause == "logits"


def test_a_cache_that_generation_reads_is_not_trainings() -> None:
    cache = "transformers/cache_utils.py|update|self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], key_states], dim=-2)"
    full = oom("1.53 GiB", allocated=21.9, capacity=23.64, free=1.1)
    assert _share(_of(trace("gen.py|<module>|out = model.generate(**inputs)", cache) + full), "decode-cache-in-training") < 0.1
    assert _of(trace("train.py|<module>|loss = model(**batch).loss", cache) + full).findings[0].cause == "decode-cache-in-training"


@pytest.mark.parametrize(("packs", "share"), [("sample_packing: true\n", (0.0, 0.05)), ("", (0.3, 1.0))])
def test_packed_samples_are_not_mostly_padding(packs: str, share: tuple[float, float]) -> None:
    config = "base_model: meta-llama/Llama-3.1-8B\nadapter: qlora\nload_in_4bit: true\nsequence_len: 4096\npad_to_sequence_len: true\nmicro_batch_size: 2\n"
    found = _share(diagnose([("a.yaml", config + packs)]), "padding")
    assert share[0] <= found <= share[1]
