"""The Lightning callback on the real library, where it is installed: each phase is seen, faults are found, a failure for want of memory is explained."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # of Lightning: workers, loggers, its own deprecations
from advisor.measurement.lightning import watching  # noqa: E402

OOM = (
    "CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free. Including non-PyTorch memory, "
    "this process has 77.94 GiB memory in use. Of the allocated memory 75.10 GiB is allocated by PyTorch, and 2.05 GiB is reserved by PyTorch but unallocated."
)


class Module(lightning.LightningModule):  # type: ignore[misc]
    """Calls its model, not itself, as many do."""

    def __init__(self, *, keeps: bool = False, dies_at: int | None = None) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Embedding(96, 32), torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 96))
        self.keeps, self.dies_at = keeps, dies_at
        self.kept: list[torch.Tensor] = []

    def training_step(self, batch, batch_idx):  # type: ignore[no-untyped-def]
        logits = self.model(batch[0])
        if self.keeps:
            self.kept.append(logits.detach())  # FAULT
        if self.dies_at == batch_idx:
            raise torch.OutOfMemoryError(OOM)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[0].flatten())

    def validation_step(self, batch, batch_idx):  # type: ignore[no-untyped-def]
        self.model(batch[0])

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fit(folder: Path, module: Module, **options: object):  # type: ignore[no-untyped-def]
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randint(0, 96, (24, 16))), batch_size=2)
    callback = watching(log=folder / "e.jsonl")
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, callbacks=[callback], **options,
    )  # fmt: skip
    trainer.fit(module, rows, rows)
    return callback.seen


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 12), (2, 6)])
def test_a_clean_run_is_quiet_and_its_phases_are_seen(tmp_path: Path, accumulate: int, steps: int) -> None:
    seen = fit(tmp_path, Module(), accumulate_grad_batches=accumulate)
    assert seen.failed is None and [f.title for f in seen.findings] == []
    assert (seen.step, seen.forwards, seen.tokens) == (steps, accumulate, (2, 16))
    assert {"forward", "backward", "step"} <= set(seen.peaks)
    parameters = sum(p.numel() for p in seen.model.parameters())
    assert seen.peaks["step"][1]["optimizer"] >= 8 * parameters  # two fp32 moments 8
    assert seen.peaks["step"][1]["gradients"] == 4 * parameters
    assert not seen.running and json.loads((tmp_path / "e.jsonl").read_text().splitlines()[-1])["kind"] == "end"


def test_what_a_step_keeps_is_found_with_its_line(tmp_path: Path) -> None:
    seen = fit(tmp_path, Module(keeps=True), precision="bf16-mixed")
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# FAULT"))
    found = {f.kind: f.where.rpartition("/")[2] for f in seen.findings if f.kind != "framework-upcast"}  # autocast's cross entropy widens the logits
    assert found == {"retained-objects": f"test_lightning.py:{line}"}
    assert seen.job()["precision"]["compute"] == "bf16"


def test_where_memory_runs_out_the_exception_is_noted(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        fit(tmp_path, Module(dies_at=5))
    assert "advisor: " in "\n".join(caught.value.__notes__)
    assert json.loads((tmp_path / "e.diagnosis.json").read_text())["watched"]["step"] == 5
