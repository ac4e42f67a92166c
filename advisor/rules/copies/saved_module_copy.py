"""``modules_to_save`` or untied embeddings duplicate large tables."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters, fingerprint, rises
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom
from advisor.rules.situation import ADAPTER
from advisor.run import Run
from advisor.units import GIB, show

TABLES = ("embed_tokens", "lm_head", "wte", "word_embeddings", "embeddings")
BYTES_TRAINED = 16  # fp32 copy 4 + fp32 gradient 4 + two fp32 moments 8 (peft ModulesToSaveWrapper with autocast_adapter_dtype)


def _applies(run: Run, evidence: Evidence) -> str | None:
    saved = run.job.method.modules_to_save
    if run.job.method.kind is not None and run.job.method.kind not in ADAPTER:
        return "no adapters are trained"
    return "no module is saved beside the adapters" if saved is not None and not saved and _by_count(run, evidence) is None else None


def _large(run: Run, _evidence: Evidence) -> str | None:
    saved, shape = run.job.method.modules_to_save or (), run.architecture
    count = sum(1 for name in saved if any(t in name for t in TABLES))
    if not count or shape is None:
        return None
    held = count * shape.vocab * shape.hidden * BYTES_TRAINED
    return f"{', '.join(saved)} are copied and trained: {count} x {shape.vocab:,} x {shape.hidden:,} x {BYTES_TRAINED} = {show(held)}" if held >= GIB else None


def _request(run: Run, evidence: Evidence) -> str | None:
    return fingerprint.match(run, evidence, "vocabulary-weight") if run.job.method.modules_to_save else None


def _rise(run: Run, evidence: Evidence) -> str | None:
    """Between two printed figures exactly that was added which the copies of the saved tables take, in fp32 or 16 bit."""
    saved, shape = run.job.method.modules_to_save or (), run.architecture
    count = sum(1 for name in saved if any(t in name for t in TABLES))
    if not count or shape is None:
        return None
    elements = count * shape.vocab * shape.hidden
    return next((found for width in (4, 2) if (found := rises.matching(evidence, width * elements, f"a copy of {', '.join(saved)}"))), None)


def _adapters_train(run: Run, evidence: Evidence) -> str | None:
    """Adapters are trained, by the settings or, where those say nothing, by the text; a list of a known model's saved modules has a mark of its own."""
    fact = run.facts.get("method.kind")
    known = fact is not None and fact.kind in ("stated", "read")
    adapters = run.job.method.kind in ADAPTER if known else any("lora" in line.text.lower() for line in evidence.lines)
    return "" if adapters and not (run.job.method.modules_to_save and run.architecture is not None) else None


_TRAINABLE = pattern(r"\btrainable (?:params|parameters)\W{1,4}([\d,]{7,20})\b", re.IGNORECASE)  # peft print_trainable_parameters
_RESIZED = pattern(r"(?:resiz\w+|vocab\w*)[^\n]{0,60}?\bto (\d{4,6})\b|Embedding\((\d{4,6}), \d{2,5}\)", re.IGNORECASE)
HIDDEN = 64  # hidden sizes are multiples of it
ADAPTERS_AT_MOST = 0.1  # of what is trained, where the model's shape is not known


def _by_count(run: Run, evidence: Evidence) -> str | None:
    """What is printed as trained is one or two tables of the vocabulary and a rest as small as adapters: LoRA of no such rank comes to that."""
    if run.job.method.kind not in (*ADAPTER, None):
        return None
    trained, where = next(((int(m[1].replace(",", "")), line.where) for line in evidence.lines if (m := _TRAINABLE.search(line.text)) is not None), (0, ""))
    resized = next((int(m[1] or m[2]) for line in evidence.lines if (m := _RESIZED.search(line.text)) is not None), None)
    shape, rank = run.architecture, run.job.method.rank
    vocab = resized or (shape.vocab if shape is not None else None)
    if not trained or vocab is None:
        return None
    if shape is not None and rank is not None:
        most = rank * sum(block.count * sum(one.times * sum(one.shape) for one in block.tensors if len(one.shape) == 2) for block in shape.blocks)
        hiddens = [shape.hidden] if trained > most else []  # else adapters beside every matrix can be all that is trained
    else:
        most, hiddens = int(ADAPTERS_AT_MOST * trained), _hiddens(evidence, vocab)
    for hidden in hiddens:
        for tables in (1, 2):
            rest = trained - tables * vocab * hidden
            if 0 <= rest <= most:
                return f"{trained:,} parameters are trained: {tables} x {vocab:,} x {hidden:,} of the vocabulary, and {rest:,} of adapters ({where})"
    return None


def _hiddens(evidence: Evidence, vocab: int) -> list[int]:
    """Hidden sizes for which the failed request is a table of the vocabulary, in fp32 or 16 bit."""
    requested = counters.of(evidence).requested
    if requested is None:
        return []
    found = [(width, round(requested / (width * vocab) / HIDDEN) * HIDDEN) for width in (4, 2)]
    return [hidden for width, hidden in found if hidden and abs(hidden * vocab * width - requested) <= 0.01 * requested]


RULE = Rule(
    id="saved-module-copy",
    tier="copies",
    title="Whole embedding tables are copied and trained beside the adapters",
    cleared="No large module is copied beside the adapters.",
    prior=-1.0,
    applies=_applies,
    marks=(
        Mark("saved-module-copy-large", 2.5, "large tables", "peft ModulesToSaveWrapper deep-copies the module and keeps the original", when=_large),
        Mark(
            "saved-module-copy-told",
            3.0,
            "embedding or head is named as saved beside the adapters, of a model that is not known",
            "peft LoraConfig.modules_to_save, LLaMA-Factory additional_target (and resize_vocab with new tokens): each table is copied and trained whole",
            pattern=r"(modules_to_save|additional_target)s?\W{1,6}[\w.,'\" ]{0,60}(embed|lm_head|wte|word_embeddings)",
            when=lambda run, _: "" if run.architecture is None else None,
        ),
        Mark(
            "saved-module-copy-table",
            3.5,
            "a whole table is copied for the few rows that are trained",
            "peft tuners/trainable_tokens/layer.py get_merged_weights: weight.index_copy makes a new table in each forward pass",
            pattern=r"tuners/trainable_tokens/layer\.py:",
            on="frame",
        ),
        Mark(
            "saved-module-copy-new-tokens",
            3.0,
            "tokens are added to the vocabulary, which makes the embedding and the head trainable as a whole",
            "LLaMA-Factory model/adapter.py: with resize_vocab (set by new tokens) additional_target is both tables: "
            "'Vocab has been resized, add ... to trainable'",
            pattern=r"Vocab has been resized, add .{1,80} to trainable|"
            r"(?:new_special_tokens|add_tokens|add_special_tokens)\s?[=: ]\s?(?!none|null|false|''|\"\")\S|"
            r"\bresize_vocab\s?[=: ]\s?true",
            when=_adapters_train,
        ),
        Mark(
            "saved-module-copy-count",
            3.0,
            "the tables are among what is trained",
            "peft print_trainable_parameters counts modules_to_save; a rank adds r x (in + out) a matrix, a table vocabulary x hidden",
            when=_by_count,
        ),
        Mark("saved-module-copy-rise", 3.0, "the copy between two figures", "the same: one more table for each name", when=_rise),
        Mark("saved-module-copy-request", 2.0, "the request is such a table", "a copy, gradient or moment has the table's shape", when=_request),
        Mark(
            "saved-module-copy-frame",
            2.5,
            "the copy is made or its state is built",
            "peft/utils/other.py ModulesToSaveWrapper.update: copy.deepcopy(self.original_module)",
            pattern=r"ModulesToSaveWrapper|_set_trainable|utils/other\.py:update",
            on="frame",
        ),
        Mark(
            "saved-module-copy-targeted",
            3.5,
            "embedding and head are trained whole beside the adapters",
            "unsloth models/llama.py get_peft_model moves embed_tokens and lm_head from target_modules to modules_to_save: "
            "'Training embed_tokens in mixed precision'",
            pattern=(
                r"Training (embed_tokens|lm_head) in (mixed|full|bfloat16|float32)|Offloading (input|output)_embeddings to disk|"
                r"Casting (embed_tokens|lm_head) to float32"
            ),
            on="line",
        ),
        Mark(
            "saved-module-copy-resized",
            0.7,
            "the vocabulary was resized",
            "transformers resize_token_embeddings; LLaMA-Factory then adds embeddings to modules_to_save",
            pattern=r"resize_token_embeddings|resize_vocab['\"]?\s*[=:]\s*true|Resized (token )?embeddings",
        ),
    ),
    remedies=("reduce-modules-to-save", "tie-embeddings", "eight-bit-optimizer"),
    fires=(
        Example(
            "new tokens in LLaMA-Factory",
            text="finetuning_type: lora\nnew_special_tokens: <think>,</think>\n"
            "[WARNING|adapter.py:204] Vocab has been resized, add embed_tokens,lm_head to trainable params.\n"
            + "torch.OutOfMemoryError: CUDA out of memory.\n",
        ),
        Example(
            "told beside an error",
            text="LoRA, r=16, modules_to_save=['embed_tokens', 'lm_head'] for some new tokens\n" + "torch.OutOfMemoryError: CUDA out of memory.\n",
        ),
        Example(
            "embeddings and head saved",
            job=job(
                "Qwen/Qwen2.5-7B", method="{kind: lora, base: nf4, rank: 16, modules_to_save: [embed_tokens, lm_head]}", batch="{micro_batch: 1, seq_len: 1024}"
            ),
            text=oom("2.03 GiB", allocated=22.1, capacity=23.64, free=0.9),
        ),
        Example(
            "tables among unsloth's target modules",
            job=job("unsloth/gemma-2-2b", method="{kind: lora, base: nf4, rank: 128}", batch="{micro_batch: 2, seq_len: 2048}"),
            text="Unsloth: Training embed_tokens in mixed precision to save VRAM\nUnsloth: Training lm_head in mixed precision to save VRAM\n"
            + oom("2.20 GiB", allocated=13.1, capacity=14.75, free=1.1),
        ),
    ),
    quiet=(Example("adapters alone", job=job(method="{kind: lora, rank: 16, modules_to_save: []}"), text=oom("512.00 MiB", allocated=76.5)),),
)
