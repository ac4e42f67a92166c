"""Encoders that classify, and encoder-decoders, of a few layers: the estimate against the probe, checkpointed or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest

from advisor.arithmetic import estimate
from advisor.job import read_job
from advisor.run import resolve
from advisor.simulation.probing import asked_of
from advisor.simulation.sessions import Session

transformers = pytest.importorskip("transformers", minversion="5.24", reason="the models are those of transformers 5.24")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

SECONDS, WITHIN, LAYERS = 120, 0.03, 4
DEPTHS = frozenset({"num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers"})
TRANSLATE = ("bart", "mbart", "pegasus", "t5", "mt5", "whisper")
METHODS: dict[str, dict[str, Any]] = {
    "whole": {}, "autocast": {"precision": {"weights": "fp32", "compute": "bf16", "mixed": "autocast"}},
    "lora": {"method": {"kind": "lora", "rank": 16, "targets": "all-linear", "adapter_dtype": "bf16"}},
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {  # as in every checkpoint's config, not in the class's
    "roberta": {"max_position_embeddings": 514, "type_vocab_size": 1},
    "t5": {"d_model": 768, "num_heads": 12, "d_ff": 3072}, "mt5": {"d_model": 768, "num_heads": 12, "d_ff": 2048, "vocab_size": 32128},
    "whisper": {"d_model": 768, **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 12), "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
}  # fmt: skip


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session() as open_session:
        yield open_session


def config(kind: str) -> dict[str, Any]:
    known = json.loads(transformers.CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    small = {name: LAYERS if name in DEPTHS else value for name, value in known.items() if name not in ("layer_types", "architectures", "transformers_version")}
    head = {} if kind in TRANSLATE else {"architectures": ["ForSequenceClassification"]}
    return {**small, **MORE.get(kind, {}), **head, "model_type": kind}


CASES = [(kind, "whole") for kind in ("bert", "roberta", "deberta-v2", "modernbert", *TRANSLATE)] + [
    (kind, method) for kind in ("t5", "mt5", "mbart", "whisper") for method in ("autocast", "lora")
]  # fmt: skip


@pytest.mark.parametrize(("kind", "method"), CASES)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_estimate_and_probe_agree(kind: str, method: str, checkpointing: str, session: Session) -> None:
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "peft", "accelerate")}
    job: dict[str, Any] = {
        "version": 1, "model": {"config": config(kind)}, "method": {"kind": "full"}, "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"},
        "optimizer": {"name": "adamw", "implementation": "foreach"}, "batch": {"micro_batch": 16, "seq_len": 448 if kind == "whisper" else 512, "packed": True},
        "activations": {"checkpointing": checkpointing, "attention": "sdpa"}, "hardware": {"gpu": "h100-80gb"},
        "framework": {"name": "hf-trainer", "versions": versions},
    }  # fmt: skip
    for section, values in METHODS[method].items():
        job[section] = {**job[section], **values}
    run = resolve(read_job(job))
    probed = asked_of(session, run, timeout=SECONDS, say=lambda _: None).ledger
    assert estimate(run).peak().bytes == pytest.approx(probed.peak().bytes, rel=WITHIN)


def test_whisper_s_encoder_hears_30_seconds_whatever_the_text_s_length() -> None:
    def peak(length: int) -> int:
        job = {"version": 1, "model": {"config": config("whisper")}, "batch": {"micro_batch": 8, "seq_len": length}, "precision": {"weights": "bf16"}}
        return sum(h.bytes for h in estimate(resolve(read_job(job))).alive("loss.backward") if h.name.startswith(("encoder", "features")))

    assert peak(32) == peak(448) > 0


def test_a_transcript_without_a_length_is_as_long_as_the_decoder_allows() -> None:
    job = {"version": 1, "model": {"config": config("whisper")}, "batch": {"micro_batch": 8}, "precision": {"weights": "bf16"}}
    run = resolve(read_job(job))
    assert run.job.batch.seq_len == 448 and run.facts["batch.seq_len"].kind == "assumed" and not run.missing
    total = estimate(run).totals()["max_allocated"]
    assert total.low < total.expected <= total.high
