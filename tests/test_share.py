# ruff: noqa: E501  hand-made data reads better in one line
"""A link brings the same job, counters and first cause back; what is tampered with is dropped and named."""

from pathlib import Path
from urllib.parse import parse_qsl, quote

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor import share
from advisor.diagnosis import diagnose_reading
from advisor.evidence import Evidence, Failure, Frame, Process
from advisor.job import Job, fields, read_job
from advisor.knowledge import folder
from advisor.planner.constraints import Constraints
from advisor.reading import Reading, read
from advisor.report import Report
from advisor.share import failure_reading, failure_writing, form, notation
from advisor.units import GIB, read_size

LINKS = [line for line in (Path(__file__).parent / "links.txt").read_text().splitlines() if line and not line.startswith("#")]
SAMPLES = sorted((folder("knowledge") / "samples").glob("*.yaml"))


@pytest.mark.parametrize("query", LINKS)
def test_every_link_ever_issued_opens(query: str) -> None:
    opened = share.open_link(query)
    assert opened.dropped == ()
    again = share.open_link(share.link(opened.job, opened.evidence).query)
    assert again.job == opened.job
    assert again.evidence.failures == opened.evidence.failures and again.evidence.devices == opened.evidence.devices


def figures(report: Report) -> list[object]:
    """What a reader compares: the card, what is needed with its range, and the plan with what each change saves."""
    need = report.ledger.totals()["device_used"] if report.ledger is not None else None
    return [report.run.job.hardware.gpu if report.run else None, need, [(s.technique, s.after_bytes) for s in report.plan.steps]]


@pytest.mark.parametrize("file", SAMPLES, ids=lambda f: f.stem)
def test_a_sample_survives_its_link(file: Path) -> None:
    reading = read([(name, text) for name, text in yaml.safe_load(file.read_text())["files"].items()])
    made = share.link(reading.job, reading.evidence)
    assert made.fits, len(made.query)
    opened = share.open_link(made.query)
    assert opened.dropped == ()
    before, after = diagnose_reading(reading), diagnose_reading(Reading(opened.job, opened.evidence))
    assert (after.verdict, [f.cause for f in after.findings[:1]]) == (before.verdict, [f.cause for f in before.findings[:1]])
    assert figures(after) == figures(before)


# what these plans rest on is a sum over printed samples and the words of a log, which do not travel: the cause does, the first figure does not
# (and which of the frameworks without a name in a job file it is: SkyRL's engines are processes of their own)
ONLY_TEXT = {"dup-torchtune-rope-cache", "frag-nemorl-moe", "frag-skyrl-offload-churn"}
CASES = sorted(p for p in (Path(__file__).parent / "cases").iterdir() if (p / "input").is_dir())


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_a_reported_failure_survives_its_link(case: Path) -> None:
    reading = read([(file.name, file) for file in sorted((case / "input").iterdir())])
    made = share.link(reading.job, reading.evidence)
    assert made.fits, len(made.query)
    opened = share.open_link(made.query)
    assert opened.dropped == ()
    before, after = diagnose_reading(reading), diagnose_reading(Reading(opened.job, opened.evidence))
    assert (after.verdict, [f.cause for f in after.findings[:1]]) == (before.verdict, [f.cause for f in before.findings[:1]])
    if case.name not in ONLY_TEXT:
        assert figures(after) == figures(before)


def test_a_card_assumed_from_its_total_is_assumed_again() -> None:
    """The card is a guess among several of that total: the link leaves the guess out, and whoever opens it makes the same one, with the same alternatives."""
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of 47.43 GiB of which 77.19 MiB is free. Of the allocated memory 46.60 GiB is allocated by PyTorch, and 320.50 MiB is reserved by PyTorch but unallocated."
    reading = read([("pasted text", text)])
    made = share.link(reading.job, reading.evidence)
    assert "hardware.gpu" not in made.query
    opened = share.open_link(made.query)
    guess, again = reading.evidence.fact("hardware.gpu"), opened.evidence.fact("hardware.gpu")
    assert guess is not None and again is not None and guess.kind == again.kind == "assumed"
    assert (again.value, again.alternatives) == (guess.value, guess.alternatives) and opened.job.hardware.gpu == reading.job.hardware.gpu


def test_a_word_of_the_readers_travels_and_none_of_the_text() -> None:
    text = "[rank3]:[E1102 03:11:20.101 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=18211, OpType=ALLREDUCE, NumelIn=25600000, NumelOut=25600000, Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
    reading = read([("pasted text", text)])
    opened = share.open_link(share.link(reading.job, reading.evidence).query)
    assert diagnose_reading(Reading(opened.job, opened.evidence)).verdict == diagnose_reading(reading).verdict == "not-memory"
    failure = Failure("collective", "a:1", "text", details=(("what", "time-out"), ("process", "python"), ("phase_from", "secret_project.py:step")))
    assert "secret_project" not in (query := share.link(Job(), Evidence(failures=(failure,))).query) and "python" not in query


def test_only_functions_of_public_libraries_travel() -> None:
    frames = tuple(
        Frame("a:1", file, 3, function, code="secret = 1")
        for file, function in (("train.py", "main"), ("mycompany/model.py", "forward"), ("torch/optim/adamw.py", "step"))
    )
    query = share.link(Job(), Evidence(failures=(Failure("gpu-memory", "a:1", "text", frames=frames),))).query
    assert "torch/optim/adamw.py/step" in query
    assert "mycompany" not in query and "train.py" not in query and "secret" not in query


def test_no_text_of_the_error_is_in_a_link() -> None:
    secret = "xyzzy-internal-project"
    text = f"RuntimeError: CUDA out of memory in {secret}. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity; 12.00 GiB already allocated; 1.00 GiB free; 13.00 GiB reserved in total by PyTorch)"  # fmt: skip
    reading = read([(f"{secret}.txt", text)])
    assert secret not in share.link(reading.job, reading.evidence).query


@pytest.mark.parametrize("name", ["/mnt/data/llama", "./out/checkpoint-12", "~/models/x", "C:\\models\\x", "../x", "s3://bucket/x", "a/b/c", "home/me/x"])
def test_local_names_stay_at_home(name: str) -> None:
    made = share.link(read_job({"version": 1, "model": {"name": name}}), Evidence())
    assert quote(name, safe="") not in made.query and name not in made.query
    assert any("model.name" in text for text in made.left_out)


def test_a_local_copy_of_a_known_model_goes_by_its_public_name() -> None:
    made = share.link(read_job({"version": 1, "model": {"name": "/mnt/models/Llama-3.1-8B"}}), Evidence())
    assert "meta-llama/Llama-3.1-8B" in made.query and "/mnt" not in made.query


def test_a_known_name_carries_no_config() -> None:
    from advisor.architecture.presets import find

    preset = find("meta-llama/Llama-3.1-8B")
    assert preset is not None
    named = read_job({"version": 1, "model": {"name": preset.hub_id, "config": dict(preset.config)}})
    assert "model.config" not in share.link(named, Evidence()).query
    wider = read_job({"version": 1, "model": {"name": preset.hub_id, "config": {**preset.config, "num_hidden_layers": 3}}})
    assert "num_hidden_layers:3" in share.link(wider, Evidence()).query


def test_a_config_is_cut_to_what_tells_its_shape() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 320, "_name_or_path": "/home/me/x", "bos_token_id": 1}  # fmt: skip
    job = read_job({"version": 1, "model": {"config": config}})
    made = share.link(job, Evidence())
    assert "_name_or_path" not in made.query and "bos_token_id" not in made.query
    from advisor.architecture import of_model

    assert of_model(share.open_link(made.query).job.model) == of_model(job.model)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("v=1&batch.micro_batch=-4", "batch.micro_batch"),
        ("v=1&batch.micro_batch=1e99", "batch.micro_batch"),
        ("v=1&layers=1000000000000", "layers"),
        ("v=1&activations.checkpointing=sometimes", "activations.checkpointing"),
        ("v=99&batch.micro_batch=4", "v"),
        ("v=x", "v"),
        ("v=000001" + "0" * 5_000, "v"),
        ("v=1&error.requested=lots", "error.requested"),
        ("v=1&error.phase=lunch", "error.phase"),
        ("v=1&error=none-such", "error"),
        ("v=1&error.mystery=1", "error.mystery"),
        ("v=1&error.frames=mycompany/model.py/forward", "error.frames"),
        ("v=1&marks=no-such-mark", "marks"),
        ("v=1&marks=((((", "marks"),
        ("v=1&device.1=used:lots", "device.1"),
        ("v=1&model.config=" + "(a:" * 50, "model.config"),
        ("v=1&name=x", "name"),
        ("v=1&" + "&".join(f"a{n}=1" for n in range(5000)), "parameters"),
        ("v=1&x=" + "y" * 50_000, "characters"),
    ],
)
def test_what_is_wrong_is_dropped_and_named(query: str, named: str) -> None:
    opened = share.open_link(query)
    assert any(named in text for text in opened.dropped), opened.dropped
    assert all(len(text) < 400 for text in opened.dropped)


@given(st.text(max_size=300))
def test_any_query_opens(text: str) -> None:
    share.open_link(text)


@given(st.dictionaries(st.sampled_from([*fields(), "error", "error.requested", "error2.free", "device.3", "marks", "v"]), st.text(max_size=60), max_size=12))
def test_any_value_of_a_known_parameter_opens(pairs: dict[str, str]) -> None:
    share.open_link(pairs)


JOBS = st.fixed_dictionaries(
    {},
    optional={
        "objective": st.sampled_from(["sft", "dpo", "grpo"]),
        "method": st.fixed_dictionaries({}, optional={"kind": st.sampled_from(["full", "lora"]), "rank": st.integers(1, 512), "targets": st.one_of(st.just("all-linear"), st.lists(st.sampled_from(["q_proj", "v_proj", "a.b"]), min_size=1, max_size=3)), "modules_to_save": st.lists(st.sampled_from(["lm_head", "embed_tokens"]), max_size=2), "dropout": st.floats(0, 1)}),
        "batch": st.fixed_dictionaries({}, optional={"micro_batch": st.integers(1, 4096), "seq_len": st.integers(1, 1 << 20), "packed": st.booleans(), "lengths": st.fixed_dictionaries({"max": st.integers(1, 9999)})}),
        "parallel": st.fixed_dictionaries({}, optional={"strategy": st.sampled_from(["ddp", "fsdp2", "zero3"]), "pipeline_rank": st.one_of(st.sampled_from(["first", "last"]), st.integers(0, 9)), "wrap": st.just({"adapters": "apart"})}),
        "rollout": st.fixed_dictionaries({}, optional={"memory_fraction": st.floats(0.01, 1), "trainer_offloaded": st.just({"optimizer": True})}),
        "eval": st.just({}),
        "hardware": st.fixed_dictionaries({}, optional={"gpu": st.one_of(st.just("a100-80gb"), st.just({"name": "Odd, card (x)", "memory_gib": 47.5})), "nodes": st.integers(1, 64)}),
        "framework": st.fixed_dictionaries({}, optional={"versions": st.dictionaries(st.sampled_from(["torch", "trl"]), st.sampled_from(["2.4", "2.4.1", "1"])), "allocator": st.just({"expandable_segments": True, "max_split_size_mb": 128})}),
    },
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(JOBS)
def test_a_job_survives_its_link(data: dict[str, object]) -> None:
    job = read_job({"version": 1, **data})
    opened = share.open_link(share.link(job, Evidence()).query)
    assert opened.dropped == ()
    assert opened.job == job


SIZES = st.one_of(
    st.integers(0, 1 << 40).map(lambda n: (n, 0)),
    st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 30)),
    st.tuples(st.integers(0, 99_999), st.sampled_from(["GiB", "MiB", "KiB"])).map(
        lambda t: (s.bytes, s.tolerance) if (s := read_size(f"{t[0] / 100:.2f} {t[1]}")) else (0, 0)
    ),
)


@given(SIZES)
def test_a_size_survives_as_it_was_printed(size: tuple[int, int]) -> None:
    back = failure_reading.read_printed(failure_writing.size_text(*size))
    assert back is not None and (back.bytes, back.tolerance) == size


def test_processes_and_ranks_survive() -> None:
    failure = Failure("gpu-memory", "a:1", "text", backend="cuda", rank=3, gpu=1, requested_bytes=2 * GIB, phase="step", processes=(Process(12, 5 * GIB, own=True), Process(77, None)), details=(("exit_code", 137),))  # fmt: skip
    back = share.open_link(share.link(Job(), Evidence(failures=(failure,))).query).evidence.failure
    assert back is not None
    assert (back.rank, back.gpu, back.phase, back.requested_bytes, back.own_bytes, back.details) == (3, 1, "step", 2 * GIB, 5 * GIB, (("exit_code", 137),))
    assert [p.own for p in back.processes] == [True, False] and back.processes[1].used_bytes is None


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_the_notation_is_read_back(data: dict[str, object]) -> None:
    try:
        assert notation.read_mapping(notation.write_mapping(data)) == data
    except notation.NotationError as error:
        assert "deeply" in str(error)


def test_older_forms_are_upgraded_in_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(given: dict[str, str]) -> dict[str, str]:
        return {("batch.micro_batch" if name == "mb" else name): value for name, value in given.items()}

    def second(given: dict[str, str]) -> dict[str, str]:
        return {("batch.seq_len" if name == "sl" else name): value for name, value in given.items()}

    monkeypatch.setattr(form, "VERSION", 3)
    monkeypatch.setattr(form, "UPGRADES", {1: first, 2: second})
    opened = share.open_link("v=1&mb=4&sl=128")
    assert (opened.job.batch.micro_batch, opened.job.batch.seq_len, opened.dropped) == (4, 128, ())
    assert share.open_link("v=2&mb=4&sl=128").job.batch.micro_batch is None


def test_a_link_stays_readable() -> None:
    query = share.link(read_job({"version": 1, "batch": {"micro_batch": 4}, "activations": {"kernels": ["rmsnorm", "swiglu"]}}), Evidence()).query
    assert query == "v=1&batch.micro_batch=4&activations.kernels=rmsnorm,swiglu"
    assert dict(parse_qsl(query))["v"] == "1"


def test_ticked_changes_travel_and_unknown_ones_do_not() -> None:
    made = share.with_ticks(share.link(read_job({"version": 1, "batch": {"micro_batch": 4}}), Evidence()), ("fused-linear-loss", "gradient-checkpointing"))
    assert share.ticks_of(made.query) == ("fused-linear-loss", "gradient-checkpointing")
    assert share.ticks_of(dict(parse_qsl(made.query))) == share.ticks_of(made.query)
    assert share.open_link(made.query).dropped == ()
    assert share.ticks_of(made.query + ",no-such-change") == share.ticks_of(made.query)
    assert share.ticks_of("v=1&batch.micro_batch=4") is None
    assert share.ticks_of(share.with_ticks(share.Link("v=1"), ()).query) == ()


def test_what_a_plan_may_do_travels_and_what_cannot_be_read_is_not_guessed() -> None:
    bare = share.link(read_job({"version": 1, "batch": {"micro_batch": 4}}), Evidence())
    allow = Constraints(keep_exact=True, keep_hardware=True, most_changes=2, exclude=frozenset({"galore", "fused-kernels"}))
    made = share.with_allowed(bare, allow, 3 * GIB // 2)
    assert made.query.endswith("&allow=keep:!(exact,cards),changes:2,margin:1.5GiB,without:!(fused-kernels,galore)")
    assert share.allowed_of(made.query) == share.allowed_of(made.parameters) == (allow, 3 * GIB // 2)
    assert share.open_link(made.query).dropped == ()
    assert share.with_allowed(bare, Constraints(), None) == bare
    assert share.allowed_of(bare.query) is None


@pytest.mark.parametrize("said", ["keep:!(everything)", "keep:exact", "changes:0", "changes:2.5", "changes:!t", "margin:much", "without:!(nope)", "without:7", "x:1", "keep:!("])  # fmt: skip
def test_limits_of_a_plan_that_are_tampered_with_are_none(said: str) -> None:
    assert share.allowed_of({"v": "1", "allow": said}) is None


def test_the_issued_link_with_limits_still_says_them() -> None:
    query = next(link for link in LINKS if "&allow=" in link)
    allow = Constraints(True, True, True, True, 3, frozenset({"galore", "qlora"}))
    assert share.allowed_of(query) == (allow, 2 * GIB)
