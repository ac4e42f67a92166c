"""A tiny job measured on a CPU: one process, and two ranks with DDP and FSDP2, whose ledgers are merged."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.torch

SHAPE = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "vocab_size": 256, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
PARAMETERS = 2 * 256 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


def job(strategy: str, shard: int, replicate: int) -> dict[str, object]:
    return {
        "version": 1, "model": {"config": SHAPE}, "method": {"kind": "full"}, "objective": "pretrain",
        "precision": {"weights": "fp32", "compute": "fp32", "mixed": "none", "master": "none", "gradients": "fp32"},
        "optimizer": {"name": "adamw", "states": "fp32", "implementation": "foreach"}, "batch": {"micro_batch": 2, "seq_len": 64, "gradient_accumulation": 1},
        "activations": {"checkpointing": "none", "attention": "sdpa", "loss": "full-fp32"},
        "parallel": {"strategy": strategy, "shard": shard, "replicate": replicate}, "hardware": {"gpu": "a100-80gb"}, "framework": {"name": "custom"},
    }  # fmt: skip


def validate(folder: Path, data: dict[str, object], *options: str) -> tuple[int, str, str]:
    (folder / "job.json").write_text(json.dumps(data))
    done = subprocess.run(
        [sys.executable, "-m", "advisor.cli", "validate", "job.json", "--device", "cpu", *options], cwd=folder, capture_output=True, text=True, timeout=280
    )
    return done.returncode, done.stdout, done.stderr


def parts(found: dict[str, object]) -> dict[str, int]:
    return {h["part"]: h["bytes"] for h in found["peak"]["holdings"]}  # type: ignore[index]


def test_one_process(tmp_path: Path) -> None:
    from advisor.measurement import recorded
    from advisor.measurement.attempting import attempt

    data = job("none", 1, 1)
    found = attempt(json.dumps(data).encode(), "cpu", None, lambda _: None)
    recorded.append(tmp_path / "m.yaml", data, found)
    assert found["kind"] == "measured"
    held = parts(found)
    assert held["optimizer"] == pytest.approx(8 * PARAMETERS, rel=0.001)  # two fp32 moments 8
    assert held["weights"] == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert sum(held.values()) == found["totals"]["max_allocated"]["expected"]
    assert held["logits"] >= 4 * 2 * 64 * 256  # at least one in fp32 [micro_batch, seq_len, vocab]
    assert held["activations"] > 0 and held.get("unattributed", 0) < 0.02 * sum(held.values())  # all but some is told apart
    assert found["phases"]["step"] >= 16 * PARAMETERS  # weights 4 + gradients 4 + moments 8
    from advisor.accuracy import measured

    saved = list(measured.load([tmp_path / "m.yaml"]))
    assert saved[0].problem is None and saved[0].gib == pytest.approx(found["totals"]["max_allocated"]["expected"] / 2**30, abs=1e-4)
    assert len(yaml.safe_load((tmp_path / "m.yaml").read_text())) == 1


def test_parts_under_trainer_are_the_probes(tmp_path: Path) -> None:
    from advisor.job import read_job
    from advisor.run import resolve
    from advisor.simulation import probe

    data = {**job("none", 1, 1), "framework": {"name": "hf-trainer"}}
    code, out, error = validate(tmp_path, data, "--json")
    assert code == 0, error
    found = json.loads(out)
    held = parts(found)
    assert sum(held.values()) == found["totals"]["max_allocated"]["expected"]
    assert held.get("unattributed", 0) < 0.01 * sum(held.values())
    ledger = probe(resolve(read_job(data))).ledger
    probed = {part: sum(h.bytes for h in ledger.holdings if h.part == part and "loss.backward" in h.moments) for part in held}
    for part in ("weights", "optimizer", "activations", "logits"):
        assert held[part] == pytest.approx(probed[part], rel=0.01), part  # a CUDA block is 512 bytes at least
    assert set(held) - {"unattributed"} == {"weights", "optimizer", "activations", "logits"}


def test_the_trainers_own_loop_and_the_largest_micro_batch(tmp_path: Path) -> None:
    data = job("none", 1, 1)
    data["framework"] = {"name": "hf-trainer"}
    data["batch"] = {"micro_batch": 1, "seq_len": 64, "gradient_accumulation": 2}
    code, out, error = validate(tmp_path, data, "--json", "--largest", "--cap", "4MiB", "--save", "m.yaml")
    assert code == 0, error
    found = json.loads(out)
    answer = found["largest_micro_batch"]
    assert answer >= 2
    assert found["tried"][str(answer)]["outcome"] == "fits" and found["tried"][str(answer + 1)]["outcome"] == "ooms"
    tried = [found["tried"][number] for number in sorted(found["tried"], key=int)]
    peaks = [one["totals"]["max_allocated"]["expected"] for one in tried]
    assert peaks == sorted(peaks) and peaks[0] < peaks[-1]
    assert all(one["phases"]["step"] >= 16 * PARAMETERS for one in tried)  # weights 4 + gradients 4 + moments 8
    assert all(one["phases"]["backward"] > one["phases"]["step"] - 4 * PARAMETERS for one in tried)
    saved = yaml.safe_load((tmp_path / "m.yaml").read_text())
    assert {entry["outcome"] for entry in saved} == {"fits", "ooms"}
    assert all(entry["job"]["framework"]["versions"]["torch"] for entry in saved)
    from advisor.accuracy import measured

    assert all(entry.problem is None for entry in measured.load([tmp_path / "m.yaml"]))


@pytest.fixture
def nothing_left_of_accelerate() -> Iterator[None]:
    """Its state is the process's: the next test begins without it, and with the environment as it was."""
    before = dict(os.environ)
    yield
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


@pytest.mark.usefixtures("nothing_left_of_accelerate")
def test_dpo_has_its_reference_and_its_loss_in_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with TRL 1.16's signatures, where TRL itself may not be installed."""
    import torch
    import transformers

    from advisor.measurement import trainers
    from advisor.measurement.attempting import attempt

    class DPOConfig(transformers.TrainingArguments):
        def __init__(self, *args: Any, max_length: int | None = None, **options: Any) -> None:
            super().__init__(*args, **options)
            self.max_length = max_length

    class DPOTrainer(transformers.Trainer):
        def __init__(self, model: Any, ref_model: Any = None, args: Any = None, *, train_dataset: Any, processing_class: Any, optimizers: Any) -> None:
            words = [processing_class(row["prompt"] + row["chosen"] + "<pad>")["input_ids"] for row in train_dataset]
            assert {len(ids) for ids in words} == {64} == {args.max_length}
            rows = [{"input_ids": ids} for ids in words]
            super().__init__(model=model, args=args, train_dataset=rows, data_collator=transformers.default_data_collator, optimizers=optimizers)  # type: ignore[arg-type]
            self.ref_model = ref_model

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:  # type: ignore[override]
            pair = torch.cat([inputs["input_ids"]] * 2)
            logits = model(input_ids=pair).logits
            with torch.no_grad():
                before = self.ref_model(input_ids=pair).logits
            return (logits - before).square().mean()

    given = {"trl": SimpleNamespace(DPOConfig=DPOConfig, DPOTrainer=DPOTrainer), "datasets": SimpleNamespace(Dataset=SimpleNamespace(from_list=list))}
    monkeypatch.setattr(trainers, "import_module", given.__getitem__)
    monkeypatch.setattr(trainers, "find_spec", lambda name: name)
    data = {**job("none", 1, 1), "framework": {"name": "trl"}, "objective": "dpo", "reference": "copy"}
    found = attempt(json.dumps(data).encode(), "cpu", None, lambda _: None)
    assert found["outcome"] == "fits", found
    held, logits = parts(found), 4 * 4 * 64 * 256  # a pair is two sequences
    assert held["reference"] == held["weights"] == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert held["logits"] >= 3 * logits and sum(held.values()) == found["totals"]["max_allocated"]["expected"]
    assert held.get("unattributed", 0) < 0.01 * sum(held.values())
    assert found["phases"]["forward"] >= 2 * held["weights"] + held["optimizer"] + 3 * logits  # policy's, reference's, their difference


def test_what_ran_is_said(tmp_path: Path) -> None:
    from advisor.job import read_job
    from advisor.measurement import trainers

    def loop(framework: str, strategy: str = "none", ranks: int = 1, **changes: object) -> tuple[str | None, str | None]:
        return trainers.loop_of(read_job({**job(strategy, 1, 1), "framework": {"name": framework}, **changes}), ranks)

    assert loop("custom") == (None, None)
    assert loop("hf-trainer") == ("trainer", None)
    assert loop("trl", objective="sft")[0] in ("trainer", "sft-trainer")
    ran, note = loop("trl", objective="dpo", reference="copy")
    assert ran == "dpo-trainer" or (ran == "trainer" and "dpo was not measured" in str(note))
    assert "dpo was not measured" in str(loop("trl", objective="dpo", reference="separate")[1])
    assert "plain loop" in str(loop("hf-trainer", "fsdp2", 2)[1])


def test_two_processes_of_one_node(tmp_path: Path) -> None:
    code, out, error = validate(tmp_path, job("fsdp2", 2, 1), "--json", "--nproc", "2")
    assert code == 0, error
    of_two_ranks(json.loads(out), shard=2)


@pytest.mark.parametrize(("strategy", "rank", "number", "code"), [("fsdp2", 1, 6, 0), ("ddp", 0, 4, 1)])
def test_a_rank_that_runs_out_ends_the_others(tmp_path: Path, strategy: str, rank: int, number: int, code: int) -> None:
    """In the step that is watched after the measured ones (the sixth) what was measured stands; in a measured one the job ran out."""
    (tmp_path / "job.json").write_text(json.dumps(job("fsdp2", 2, 1) if strategy == "fsdp2" else job("ddp", 1, 2)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(Path(__file__).with_name("one_runs_out.py"))]
    done = subprocess.run(  # far below what a collective waits for by default: 30 minutes
        [*launcher, "job.json", "--device", "cpu", "--out", "out.json"], cwd=tmp_path, capture_output=True, text=True, timeout=280,
        env={**os.environ, "FAULTY_RANK": str(rank), "FAULTY_PASS": str(number)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert f"rank {rank} ran out of memory" in done.stderr and f"rank {1 - rank} ends with it" in done.stderr
    if code:
        assert found["outcome"] == "ooms" and "20.00 MiB" in found["error"]
    else:
        assert found["outcome"] == "fits" and found["ranks"]["number"] == 2 and "activations" not in parts(found)
        assert any("ran out of memory" in note for note in found["notes"]) and "Traceback" not in done.stderr


class Store(dict[str, Any]):
    """What TCPStore does, in one process."""

    def add(self, key: str, number: int) -> int:
        self[key] = self.get(key, 0) + number
        return int(self[key])

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def wait(self, keys: list[str]) -> None:
        assert self.check(keys)


def test_rank_0_writes_the_first_ranks_word_and_all_leave_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    from advisor.measurement.together import HEARD, Together

    written: list[tuple[int, object]] = []
    store, left = Store(), list[int]()

    def writer(rank: int) -> Callable[[dict[str, Any]], None]:
        return lambda answer: written.append((rank, answer))

    ranks = [Together(rank, 3, store, writer(rank), left.append) for rank in range(3)]
    store[HEARD] = 2  # as if the others' threads had
    with pytest.raises(SystemExit):
        ranks[2].end({"outcome": "ooms"}, 1, "ran out of memory")
    with pytest.raises(SystemExit):
        ranks[1].end({"outcome": "not-measured"}, 2, "could not measure")  # a consequence: the first one's word stands
    with pytest.raises(SystemExit):
        ranks[0].heard()
    assert left == [1, 1, 1]
    assert (0, {"outcome": "ooms"}) in written and {"outcome": "not-measured"} not in [answer for _, answer in written]
    assert "rank 2 ran out of memory: rank 0 ends with it" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "said"), [(-9, ""), (1, "E1201 api.py:984] failed (exitcode: -9) local_rank: 1 (pid: 4711) of binary: python\n")])
def test_a_killed_measurement_is_said_to_have_run_out(monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    from argparse import Namespace

    from advisor.commands import validate as command

    monkeypatch.setattr(command, "_ran", lambda *_: (code, said))
    found = command._measured({}, Namespace(nproc=2, device="cpu", timeout=1.0), None)
    assert found["outcome"] == "ooms" and "killed" in found["error"]


def test_two_nodes_of_one_process(tmp_path: Path) -> None:
    """The command of the page Measure, on each node."""
    (tmp_path / "job.json").write_text(json.dumps(job("ddp", 1, 2)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, "-m", "advisor.measurement", "job.json", "--device", "cpu", "--out"]
    nodes = [subprocess.Popen([*command, f"{number}.json"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for number in range(2)]
    said = [node.communicate(timeout=250)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    (answer,) = tmp_path.glob("[01].json")  # rank 0 alone writes; which node it is the meeting decides
    of_two_ranks(json.loads(answer.read_text()), shard=1)


def of_two_ranks(found: dict[str, Any], shard: int) -> None:
    assert any(note.startswith("2 ranks: largest") for note in found["notes"])
    assert found["ranks"]["number"] == 2 and found["ranks"]["max"] == found["totals"]["max_allocated"]["expected"]
    assert found["ranks"]["max"] - found["ranks"]["spread"] <= found["ranks"]["mean"] <= found["ranks"]["max"]
    held = parts(found)
    assert sum(held.values()) == found["ranks"]["max"]
    assert held["optimizer"] == pytest.approx(8 * PARAMETERS / shard, rel=0.02)
    assert held["logits"] == 3 * 4 * 2 * 64 * 256  # [micro_batch, seq_len, vocab] in fp32: themselves, their log-softmax and a gradient
    if shard == 1:
        assert held["communication"] == 4 * PARAMETERS  # DDP's buckets: every gradient once more
        assert held.get("unattributed", 0) < 0.05 * sum(held.values())
    else:
        block = 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)
        root = 4 * PARAMETERS - 2 * block
        assert held["communication"] == root + block  # gathered whole: what is outside the blocks, and one of them
        # gloo's threads make copies of their own, of what is gathered and reduced, at moments of their own: they are what is not told apart


def test_a_loss_of_the_frameworks_own_is_not_said_to_be_the_models() -> None:
    from advisor.job import read_job
    from advisor.measurement.real import _unlike

    chunked = read_job({**job("none", 1, 1), "activations": {"loss": "chunked"}, "framework": {"name": "trl"}})
    assert _unlike(chunked, own_loss=False) == ("the model's own loss ran in the place of a chunked loss",)
    (note,) = _unlike(chunked, own_loss=True)
    assert note.startswith("trl's own loss ran")


def test_what_is_made_after_the_shape_keeps_its_ties_and_is_whole() -> None:
    import torch

    from advisor.job import read_job
    from advisor.measurement import real
    from advisor.run import resolve

    data = {**job("none", 1, 1), "model": {"config": {**SHAPE, "tie_word_embeddings": True}}, "activations": {"checkpointing": "none", "attention": "flash-2"}}
    model, notes = real.shape(resolve(read_job(data)), "cpu")
    assert all(t.is_meta for t in model.parameters())
    real.fill(model, "cpu")
    assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight  # type: ignore[operator]
    tokens = torch.randint(0, 256, (1, 8))
    assert bool(model(input_ids=tokens, labels=tokens).loss.isfinite())
    assert any("in the place of flash-2" in note for note in notes)


def test_a_quantised_base_is_bitsandbytes_own_or_refused(tmp_path: Path) -> None:
    data = {
        **job("none", 1, 1), "method": {"kind": "lora", "rank": 4, "base": "nf4"}, "precision": {"weights": "bf16", "compute": "bf16"},
        "optimizer": {"name": "adamw-8bit", "states": "int8"},
    }  # fmt: skip
    code, out, error = validate(tmp_path, data, "--json")
    if any((Path(folder) / "bitsandbytes").is_dir() for folder in sys.path):  # the probe's stand-in is no folder
        assert code == 0, error
        linear = 2 * (4 * 64 * 64 + 3 * 64 * 128)
        assert parts(json.loads(out))["weights"] < 4 * PARAMETERS - 3 * linear  # half a byte each, the rest wide
    else:
        assert code == 2 and "pip install bitsandbytes" in error


def test_what_only_a_card_has_is_left_out_beside_a_cpu() -> None:
    from msgspec.structs import replace

    from advisor.commands.validate import CARDS_OWN, _side
    from advisor.compare import compare, markdown
    from advisor.job import read_job
    from advisor.run import resolve
    from advisor.verdict import of_run

    run = resolve(read_job(job("none", 1, 1)))
    ledger = of_run(run)[0]
    assert ledger is not None
    card, cpu = (_side("estimate", run, ledger, on_card) for on_card in (True, False))
    measured = replace(card, name="measured", kind="measured", copies={})
    copied = replace(card, copies={"gathered block": 1})
    assert "copy" not in markdown(compare(copied, measured)) and "- copy gone: gathered block" in markdown(compare(copied, card))
    assert set(card.parts) >= CARDS_OWN and not set(cpu.parts) & CARDS_OWN
    assert cpu.totals["max_allocated"] == sum(cpu.parts.values()) == card.totals["max_allocated"] - card.parts["workspace"]


def test_a_launcher_is_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    from advisor.cli import UserError
    from advisor.commands.validate import _ran

    program = "import pathlib, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('asked').touch(), sys.exit(0)))\ntime.sleep(60)"
    with pytest.raises(UserError, match="longer than 2 s"):
        _ran([sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r})\n{program}"], 2.0)
    assert (tmp_path / "asked").exists()


def test_what_can_not_be_measured_is_told() -> None:
    from advisor.measurement.attempting import attempt

    split = job("fsdp2", 1, 1)
    split["parallel"] = {"strategy": "fsdp2", "shard": 1, "tensor": 2}
    for data, says in (
        ({**job("none", 1, 1), "method": {"kind": "lora", "base": "gptq-int4"}}, "gptq-int4 base"),
        ({**job("none", 1, 1), "model": {"config": SHAPE, "source": "torchtune"}}, "torchtune"),
        (split, "--nproc 2"),
    ):
        answer = attempt(json.dumps(data).encode(), "cpu", None, lambda _: None)
        assert answer["outcome"] == "not-measured" and says in answer["error"]

    found = attempt(json.dumps(job("fsdp2", 2, 1)).encode(), "cpu", None, lambda _: None)
    assert found["outcome"] == "not-measured" and "--nproc 2" in found["error"]
    assert "version" in attempt(b"no job", "cpu", None, lambda _: None)["error"]
