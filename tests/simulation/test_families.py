"""A sample of families, small: parameters to the last one, and the estimate within 3 % of the probe but for what is listed with its reason."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.architecture import read
from advisor.arithmetic import estimate
from tests.simulation import families

pytest.importorskip("transformers", minversion="5.24", reason="the families are those of transformers 5.24")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def session() -> Iterator[families.Session]:
    with families.Session() as open_session:
        yield open_session


@pytest.mark.parametrize("kind", families.SAMPLE)
def test_parameters_are_those_of_the_built_model(kind: str) -> None:
    assert read(families.config(kind)).parameters == families.built(kind)


@pytest.mark.parametrize("kind", families.SAMPLE)
def test_estimate_and_probe_agree(kind: str, session: families.Session) -> None:
    expected, why = families.RESIDUALS.get(kind, (0.0, ""))
    assert families.off(session, kind) == pytest.approx(expected, abs=families.WITHIN), why


SETTINGS: dict[str, dict[str, Any]] = {
    "lora": {"method": {"kind": "lora", "rank": 16, "targets": "all-linear", "adapter_dtype": "bf16"}},
    "checkpointing": {"activations": {"checkpointing": "full", "reentrant": False}},
}


@pytest.mark.parametrize("kind", ["gemma4_text", "apertus", "deepseek_v2", "olmo", "codegen", "mellum", "gemma3n_text", "bloom"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_with_adapters_and_with_checkpointing(kind: str, setting: str, session: families.Session) -> None:
    assert families.off(session, kind, **SETTINGS[setting]) == pytest.approx(0.0, abs=families.WITHIN)


@pytest.mark.parametrize(
    ("kind", "reentrant"),
    [
        ("arcee", False),  # the square's backward
        ("dots1", False), ("mixtral", False), ("sarvam_moe", True),  # routing weights in fp32 widen what the experts give
        ("ernie4_5_moe", False),  # and where the router narrows them
        ("mpt", True), ("gpt_neo", True),  # the recomputed block returns its attention weights
    ],
)  # fmt: skip
def test_a_recomputed_block_by_family(kind: str, reentrant: bool, session: families.Session) -> None:
    off = families.off(session, kind, activations={"checkpointing": "full", "reentrant": reentrant})
    assert off == pytest.approx(0.0, abs=families.WITHIN)


@pytest.mark.parametrize("kind", ["qwen3_next", "bamba"])
def test_the_range_holds_a_scan_in_python(kind: str, session: families.Session) -> None:
    """Whether the fused scans are installed is not known: the high end is at least what transformers' own code takes."""
    fused = families.run_of("llama").but(model={"config": families.config(kind)})
    assert estimate(fused).totals()["max_allocated"].high >= families.probed(session, kind).peak().bytes


@pytest.mark.parametrize("kind", ["zamba2", "bitnet", "afmoe"])
def test_a_family_without_a_reader_says_so_and_its_range_holds_the_probe(kind: str, session: families.Session) -> None:
    found = read(families.config(kind))
    assert found.guessed
    assert "has no reader" in found.unread[0]
    total = estimate(families.run_of(kind)).totals()["max_allocated"]
    assert total.low <= families.probed(session, kind).peak().bytes <= total.high


def test_what_a_reader_does_not_describe_is_said_and_widens_the_range() -> None:
    from advisor.arithmetic import estimate
    from advisor.job import read_job
    from advisor.run import resolve

    def of(what: str) -> tuple[float, str]:
        job = {"version": 1, "model": {"name": "google/gemma-3-4b-it"}, "batch": {"micro_batch": 2, "seq_len": 1024}, "framework": {"name": "hf-trainer"}}
        run = resolve(read_job(job))
        assert run.architecture is not None
        run.__dict__["architecture"] = replace(run.architecture, undescribed=what)
        ledger = estimate(run)
        total = ledger.totals()["max_allocated"]
        return total.high / total.expected, " ".join(ledger.notes)

    wide, notes = of("a memory of its own beside the layers")
    narrow, silent = of("")
    assert "a memory of its own" in notes and wide > 2 * narrow and "Not counted" not in silent
