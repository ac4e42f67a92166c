"""Builds the job's model on the meta device, from its config, with the framework's own classes and defaults."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from advisor.architecture import Architecture
from advisor.job import Job
from advisor.run import Run
from advisor.simulation import adapting, images, quantising, scope, selective
from advisor.simulation.frameworks import TRAINERS
from advisor.simulation.quantising import DTYPES
from advisor.simulation.ranks import accelerating
from advisor.simulation.request import SAID, CannotProbe
from advisor.simulation.standins import packages, torchtitan

ATTENTION = {"eager": "eager", "sdpa": "sdpa", "flash-2": "flash_attention_2", "flash-3": "flash_attention_2"}
ENCODER_DECODER = frozenset({
    "t5", "mt5", "umt5", "longt5", "bart", "mbart", "m2m_100", "pegasus", "marian", "plbart", "mvp", "blenderbot", "blenderbot-small", "whisper",
})  # fmt: skip
CLASSIFIERS = frozenset({"bert", "roberta", "deberta-v2", "modernbert"})
PLAIN = frozenset({"custom", "torchtitan"})  # who may wrap blocks as torchtitan does
MAX_LAYERS = 2000


def build(run: Run, device: str = "meta") -> torch.nn.Module:
    """The model in training mode, on meta, adapters and checkpointing in place.

    Raises:
        CannotProbe: modelling code that transformers does not have, or a layout without a stand-in.
    """
    scope.check(run)
    job = run.effective
    titan = job.model.source == "torchtitan"
    if job.model.source not in (None, "huggingface", "remote-code", "torchtitan"):
        raise CannotProbe(f"the probe runs Hugging Face models; this job runs {job.model.source}'s own modelling code, so the estimate stands in")
    if run.architecture is None or run.architecture.layers > MAX_LAYERS:
        raise CannotProbe("the model's shape is not known or has more layers than any real model")
    if titan:
        return _of_torchtitan(run.architecture, job, device)
    model = _from_config(config_of(job), job, device, run.architecture.classes)
    quantising.quantise(model, job, DTYPES[job.precision.compute or "bf16"] if job.precision.compute in DTYPES else torch.bfloat16)
    if job.method.base not in (None, "none") and job.method.kbit_preparation and not quantising.sharded(job):
        quantising.prepare_for_kbit(model)
    _set_cache(model, run)
    model.train()
    if job.activations.checkpointing == "full":
        _checkpoint(model, job)
    elif job.activations.checkpointing == "selective":
        if (job.framework.name or "custom") not in PLAIN:
            raise CannotProbe(f"the probe does not know {job.framework.name}'s selective checkpointing: the estimate stands in")
        anymodel: Any = model
        anymodel.config.use_cache = False  # wrapped from outside, a block would append to the cache once more as it is recomputed
        selective.apply(model, job, set(accelerating.unsplit(model)))
    images.settle(model, job)
    trained = adapting.trainable(model, job, device)
    quantising.trl_casts(trained, job)
    return trained


def _of_torchtitan(architecture: Architecture, job: Job, device: str) -> torch.nn.Module:
    if job.method.kind not in (None, "full"):
        raise CannotProbe(f"torchtitan trains whole models; {job.method.kind} is not run: the estimate stands in")
    if (job.parallel.tensor or 1) > 1:
        raise CannotProbe("the probe does not run torchtitan's tensor parallelism yet: the estimate stands in")
    model = torchtitan.build(architecture, job, device, DTYPES[job.precision.weights or "fp32"])
    if job.activations.checkpointing == "selective":
        selective.apply(model, job, set(model._no_split_modules))
    elif job.activations.checkpointing == "full":
        selective.whole(model, set(model._no_split_modules))
    return model


def _set_cache(model: Any, run: Run) -> None:
    """``config.use_cache`` as the job says it, else as this version's Trainer leaves it.

    Trainer writes its argument ``use_cache`` (False) into the config since transformers 5.0; before, the model's default stayed, and a model's
    own code switched it off under checkpointing, or did not (gpt_bigcode). Read in trainer.py of 4.45.2, 4.48.1 and 5.24.0.
    """
    said = run.facts.get("framework.use_cache")
    if said is not None and said.kind in SAID:
        model.config.use_cache = bool(said.value)
    elif run.job.framework.name in TRAINERS and _trainer_decides():
        model.config.use_cache = False


def _trainer_decides() -> bool:
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return False
    return "    use_cache: bool" in (Path(spec.origin).parent / "training_args.py").read_text(encoding="utf-8")


def _checkpoint(model: Any, job: Job) -> None:
    """As Trainer switches it on; what the job leaves open is the library's default."""
    reentrant = job.activations.reentrant
    model.gradient_checkpointing_enable(*([] if reentrant is None else [{"use_reentrant": reentrant}]))
    if job.method.kind in ("lora", "dora", "freeze"):  # frozen embeddings: a checkpoint needs an input that takes gradients
        model.enable_input_require_grads()


def config_of(job: Job) -> Mapping[str, Any]:
    """The model's config, written in the job or known by its name.

    Raises:
        CannotProbe: neither.
    """
    from advisor.architecture import presets

    if job.model.config is not None:
        return job.model.config
    preset = presets.find(job.model.name) if job.model.name else None
    if preset is None:
        raise CannotProbe(f"no config is known for the model {job.model.name!r}; give model.config")
    return preset.config


def _from_config(config: Mapping[str, Any], job: Job, device: str, classes: int | None) -> torch.nn.Module:
    import transformers

    packages.offer(dict(job.framework.versions or {}))
    settings = {key: value for key, value in config.items() if key not in ("architectures", "auto_map", "torch_dtype", "dtype", "quantization_config")}
    model_type = settings.pop("model_type", None)
    if model_type not in transformers.CONFIG_MAPPING:
        raise CannotProbe(f"transformers {transformers.__version__} has no model of model_type {model_type!r}: the estimate stands in")
    try:
        parsed = transformers.AutoConfig.for_model(model_type, **settings)
    except Exception as error:  # a config class may refuse its values in any way
        raise CannotProbe(f"transformers {transformers.__version__} can not read this {model_type} config: {type(error).__name__}: {_line(error)}") from None
    if model_type in ENCODER_DECODER and getattr(parsed, "decoder_start_token_id", None) is None:
        parsed.decoder_start_token_id = getattr(parsed, "pad_token_id", None) or 0  # in every such checkpoint's config, not in the class's defaults
    auto: Any = transformers.AutoModelForCausalLM
    if model_type in ENCODER_DECODER:
        auto = transformers.AutoModelForSpeechSeq2Seq if model_type == "whisper" else transformers.AutoModelForSeq2SeqLM
    elif job.model.vision is not None or (hasattr(parsed, "vision_config") and type(parsed) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING):
        auto = transformers.AutoModelForImageTextToText
    elif classes is not None or (model_type in CLASSIFIERS and job.objective != "pretrain"):
        auto = transformers.AutoModelForSequenceClassification
        if classes is not None:
            parsed.num_labels = classes
        if getattr(parsed, "pad_token_id", None) is None:
            parsed.pad_token_id = 0  # where a batch's sequences end is read from it
    attention = ATTENTION.get(job.activations.attention or "sdpa")
    if attention is None:
        raise CannotProbe(f"the probe does not run {job.activations.attention} attention: the estimate stands in")
    dtype = DTYPES[job.precision.weights or "fp32"]
    dtypes = {"dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype": dtype}
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return _made(auto, parsed, attention, dtypes)
    except (ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        raise CannotProbe(f"{auto.__name__} can not be built on the meta device: {type(error).__name__}: {_line(error)}") from None
    finally:
        torch.set_default_dtype(before)


def _line(error: Exception) -> str:
    """An error's first line, cut where a library lists all it knows."""
    return str(error).partition("\n")[0][:200]


def _made(auto: Any, parsed: Any, attention: str, dtypes: dict[str, Any]) -> torch.nn.Module:
    """The model; where its class has no code for SDPA, which is what transformers takes unasked, with its own attention, as transformers then does."""
    try:
        made: torch.nn.Module = auto.from_config(parsed, attn_implementation=attention, **dtypes)
    except ValueError as error:
        if attention != "sdpa" or "scaled_dot_product" not in str(error):
            raise
        made = auto.from_config(parsed, attn_implementation="eager", **dtypes)
    return made
