"""Live objects: what a model, an optimizer and an exception's frames settle, without importing torch and without keeping them alive."""

import gc
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest

import advisor
from advisor import live

OOM = (
    "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 23.60 GiB of which 1.00 GiB is free. Of the allocated memory "
    "21.00 GiB is allocated by PyTorch, and 218.51 MiB is reserved by PyTorch but unallocated."
)


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


class Parameter:
    """As much of a parameter as is looked at."""

    def __init__(self, count: int, dtype: str = "torch.bfloat16", requires_grad: bool = True) -> None:
        self.count, self.dtype, self.requires_grad = count, dtype, requires_grad

    def numel(self) -> int:
        return self.count


class Config:
    """A transformers config: Qwen2.5-0.5B."""

    _name_or_path = "Qwen/Qwen2.5-0.5B"
    _attn_implementation = "flash_attention_2"

    def to_dict(self) -> dict[str, object]:
        return {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True, "_private": 1}  # fmt: skip


class Model:
    """As much of a module as is looked at."""

    def __init__(self, *parameters: Parameter, **more: object) -> None:
        self.config, self._parameters = Config(), parameters
        self.__dict__.update(more)

    def parameters(self):
        return iter(self._parameters)

    def named_modules(self):
        return iter(())


class AdamW8bit:
    """As bitsandbytes names it."""

    param_groups = ({"lr": 1e-5},)


def caught(model: Model) -> BaseException:
    def step(input_ids: SimpleNamespace) -> None:
        raise OutOfMemoryError(OOM)

    try:
        step(SimpleNamespace(shape=(8, 2048)))
    except OutOfMemoryError as error:
        return error
    raise AssertionError


def test_what_the_objects_settle() -> None:
    model = Model(Parameter(490_000_000), Parameter(1_000, "torch.float32"), is_gradient_checkpointing=True)
    found = live.facts(model, AdamW8bit(), caught(model))
    assert found["model.name"] == "Qwen/Qwen2.5-0.5B" and found["model.config"]["hidden_size"] == 896 and "_private" not in found["model.config"]
    assert (found["method.kind"], found["precision.weights"], found["optimizer.name"]) == ("full", "bf16", "adamw-8bit")
    assert (found["activations.checkpointing"], found["activations.attention"]) == ("full", "flash-2")
    assert (found["batch.micro_batch"], found["batch.seq_len"]) == (8, 2048)


def test_a_shape_that_is_open_is_no_batch() -> None:
    def step(input_ids: SimpleNamespace) -> None:
        raise OutOfMemoryError(OOM)

    for shape in ((None, 128), len, (0, 4), (4,)):
        with pytest.raises(OutOfMemoryError) as failed:
            step(SimpleNamespace(shape=shape))
        assert live.facts(error=failed.value) == {}


def test_adapters_and_a_quantised_base() -> None:
    lora = SimpleNamespace(r=16, target_modules={"v_proj", "q_proj"}, use_dora=False)
    frozen = Model(Parameter(490_000_000, requires_grad=False), peft_config={"default": lora}, is_loaded_in_4bit=True)
    found = live.facts(frozen)
    assert (found["method.kind"], found["method.rank"], found["method.targets"]) == ("lora", 16, ["q_proj", "v_proj"])
    assert found["method.base"] in ("nf4", "fp4")
    assert "method.kind" not in live.facts(Model(Parameter(10), Parameter(10, requires_grad=False))), "some weights are frozen: not told which method"


def test_what_they_do_not_say_is_left_open() -> None:
    class Mystery:
        param_groups = ()

    assert live.facts(None, Mystery()) == {}
    assert live.facts(SimpleNamespace(parameters=lambda: iter(()))) == {}


def test_a_diagnosis_of_live_objects_says_where_each_fact_is_from() -> None:
    model = Model(Parameter(494_000_000), is_gradient_checkpointing=False)
    report = advisor.diagnose(model=model, optimizer=AdamW8bit(), error=caught(model))
    assert report.verdict == "ooms" and report.run is not None
    assert (report.run.job.batch.micro_batch, report.run.job.optimizer.name) == (8, "adamw-8bit")
    assert report.findings and report.plan.steps
    assert {f.field for f in report.read if f.where == live.WHERE} >= {"batch.seq_len", "optimizer.name", "precision.weights"}


def test_nothing_is_kept_alive() -> None:
    model = Model(Parameter(494_000_000))
    ref = weakref.ref(model)
    advisor.diagnose(model=model, optimizer=AdamW8bit())
    del model
    gc.collect()
    assert ref() is None


def test_names_of_a_notebook() -> None:
    model, optimizer = Model(Parameter(1)), AdamW8bit()
    assert live.found_in({"model": model, "m": model, "optimizer": optimizer, "x": 1}) == (model, optimizer)
    assert live.found_in({"a": model, "b": Model(Parameter(2))}) == (None, None)


@pytest.mark.torch
def test_a_real_model_and_optimizer() -> None:
    torch = pytest.importorskip("torch", reason="no torch: make probe")
    transformers = pytest.importorskip("transformers", reason="no transformers: make probe")
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=320)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()  # the newer name, then the older
    found = live.facts(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    assert (found["precision.weights"], found["method.kind"], found["optimizer.name"]) == ("bf16", "full", "sgd-momentum")
    assert found["activations.checkpointing"] == "full" and found["activations.attention"] in ("sdpa", "eager")
    assert found["model.config"]["hidden_size"] == 64


def test_torch_is_not_loaded_for_it() -> None:
    code = "import sys, advisor; r = advisor.diagnose([('e', 'CUDA out of memory')]); assert 'torch' not in sys.modules and 'ipywidgets' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "momentum", "known"),
    [
        ("AdamW", 0, "adamw"), ("GaLoreAdamW", 0, "galore-adamw"), ("PagedAdamW8bit", 0, "paged-adamw-8bit"), ("DeepSpeedCPUAdam", 0, "cpu-adam"),
        ("SGD", 0, "sgd"), ("SGD", 0.9, "sgd-momentum"), ("MyOptimizer", 0, None),
    ],
)  # fmt: skip
def test_an_optimizer_is_known_by_its_class(name: str, momentum: float, known: str | None) -> None:
    from advisor.object_kinds import optimizer_name

    made = type(name, (), {"param_groups": [{"momentum": momentum}]})()
    assert optimizer_name(made) == known
