"""Logits and their loss are the peak."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import fingerprint, snapshots, static_state
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import guessed, share_marks
from advisor.rules.situation import in_block, in_phase, near, weights_exceed
from advisor.run import Run

NO_LOGITS = ("fused-linear", "chunked")


_MAKES = (
    r"logits\s*=\s*logits\.float|\.float\(\).*logits|logits\.float\(\)|loss_utils\.py|ForCausalLMLoss|cross_entropy|log_softmax|_get_(batch|per_token)_logps|"
    r"get_batch_logps|selective_log_softmax|entropy_from_logits|logprobs_from_logits|log_probs_from_logits|gather_log_probabilities|shift_logits|self\.(lm_head|output)\(|"
    r"logits\s*=\s*logits\s*/|loss(?:es)?/\w*(?:ce|cross_entropy|xent)\w*\.py:|vocab_parallel_(?:cross_entropy|softmax|log_softmax|log_?probs?|entropy)|"
    r"(?<![\w.])logits\s?[-+*/]\s?\w|(?<![\w.])logits\.(?:sub|exp|div|mul|softmax|log_softmax|logsumexp)_?\(|logits_to_log_?probs|"
    r"logits\s*=\s*self\.(lm_head|output|head|score|proj)|compute_logits|"
    # accelerate widens what a forward pass returns: of a language model the logits
    r"utils/operations\.py:_?convert_to_fp32\b|ConvertOutputsToFp32|"
    r"transformer/module\.py:forward: outputs = float16_to_fp32\("  # Megatron-LM Float16Module, on the last pipeline stage
)
_MADE = pattern(_MAKES, re.IGNORECASE)
# a router's logits have the experts as their last dimension, an attention's the sequence
_OF_LOGITS = pattern(r"log_?probs?|logps|entropy|(?<!router_)(?<!gate_)(?<!gating_)(?<!expert_)(?<!attn_)(?<!attention_)(?<!att_)logits", re.IGNORECASE)


_CALLED = pattern(r"cross_entropy\(|log_softmax\(|criterion\(|loss_fn\(")
_INSIDE = pattern(r":forward\b|:_call_impl\b|:_wrapped_call_impl\b")


def _still_inside(evidence: Evidence) -> bool:
    """The loss is named by an outer frame only, whose argument is still being computed: ``cross_entropy(model(x), y)`` fails within the model."""
    described = [f"{f.file}:{f.function}: {f.code}" for f in evidence.failure.frames] if evidence.failure is not None else []
    made = [n for n, text in enumerate(described) if _MADE.search(text)]
    if not made or not _CALLED.search(described[made[-1]]):
        return False
    return any(_INSIDE.search(text) for text in described[made[-1] + 1 :]) and not any("loss" in text.lower() for text in described[made[-1] + 1 :])


_OF_A_MODEL = pattern(r"logits\w*(?:, \w+)*\s?=\s?(?:self\.)?_?\w*(?:model|module|net|network|policy|actor|engine)\((?![^\n]*\)(?:\.|\[))")
_KEPT_SCORES = pattern(r"generation/utils\.py:_\w+: .*\+= ")


def _innermost(_run: Run, evidence: Evidence) -> str | None:
    """The last frame outside torch works on logits or what is made of them, by the names that it uses."""
    failure = evidence.failure
    frames = failure.frames if failure is not None and in_phase(evidence, "forward", "loss", "backward", "rollout", None) else ()
    if any(_MADE.search(f"{f.file}:{f.function}: {f.code}") for f in frames):
        return None  # a mark of its own
    last = next((f for f in reversed(frames) if not f.file.startswith("torch/")), None)
    if last is not None and _KEPT_SCORES.search(f"{last.file}:{last.function}: {last.code}"):
        return None  # one token's, small by themselves: what fills the card are all that were kept
    if last is not None and _OF_A_MODEL.search(last.code):
        return None  # what the whole model will return is no logits yet
    named = last is not None and (_OF_LOGITS.search(last.code) or (not last.code and _OF_LOGITS.search(last.function)))
    return f"{last.where}: what fails works on logits or log-probabilities" if last is not None and named else None


def _request(run: Run, evidence: Evidence) -> str | None:
    return fingerprint.match(run, evidence, "logits", alone=True) if _direct(run, evidence) else None


_TOKENS = pattern(r"(?<![\w.])(\d{1,3}(?:,\d{3})+|\d{1,7}(?:\.\d)?) ?(k\b)? (?:tokens|positions)\b", re.IGNORECASE)
_VOCABULARY = pattern(r"\bvocab(?:ulary)?(?:[_ ]size)?\b\W{0,4}(?:of |is |has )?(\d{1,3}(?:,\d{3})+|\d{5,6}|\d{2,3}(?= ?k\b))( ?k\b)?", re.IGNORECASE)


def _told_sizes(run: Run, evidence: Evidence) -> str | None:
    """The request is told tokens x the vocabulary, told or of the model, in 2 or 4 bytes."""
    failure = evidence.failure
    if failure is None or failure.requested_bytes is None or failure.requested_bytes < 256 << 20 or not _makes_logits(evidence):
        return None
    texts = [line.text for line in evidence.lines if len(line.text) <= 400]
    tokens = {(_number(m[1], m[2]), bool(m[2])) for text in texts for m in _TOKENS.finditer(text)}
    sizes = {(_number(m[1], m[2]), bool(m[2])) for text in texts for m in _VOCABULARY.finditer(text)}
    sizes |= {(run.architecture.vocab, False)} if run.architecture is not None else set()
    for count, rough in sorted(tokens):
        for size, rounded in sorted(sizes):
            for width in (2, 4):
                if near(failure.requested_bytes, count * size * width, 0.03 if rough or rounded else 0.005):
                    return f"the request is {count:,} tokens x {size:,} of the vocabulary x {width} bytes"
    return None


def _number(text: str, thousands: str | None) -> int:
    return round(float(text.replace(",", "")) * (1000 if thousands else 1))


def _also(run: Run, evidence: Evidence) -> str | None:
    """Another tensor of the run has the same size."""
    return fingerprint.match(run, evidence, "logits") if _direct(run, evidence) and _request(run, evidence) is None else None


def _direct(run: Run, evidence: Evidence) -> bool:
    return _makes_logits(evidence) and all(m.solved_tokens is None for m in fingerprint.matches(run, evidence))


def _makes_logits(evidence: Evidence) -> bool:
    """Whether the failing phase, as far as it is known, makes logits at all."""
    return in_phase(evidence, "forward", "loss", "backward", "eval", "rollout", None) and not in_block(evidence)


def _solved(run: Run, evidence: Evidence) -> str | None:
    if not _makes_logits(evidence):
        return None
    for found in fingerprint.matches(run, evidence):
        if found.candidate.kind == "logits" and found.solved_tokens is not None:
            return fingerprint.match(run, evidence, "logits")
    return None


def _solved_free(run: Run, evidence: Evidence) -> str | None:
    """Nothing restricts the tokens (no length, and a batch of one or none): five strides in two dtypes hit about one request in five by chance."""
    free = guessed(run, "batch.seq_len") and (guessed(run, "batch.micro_batch") or run.job.batch.micro_batch == 1)
    return _solved(run, evidence) if free else None


def _solved_one(run: Run, evidence: Evidence) -> str | None:
    return _solved(run, evidence) if _solved_free(run, evidence) is None else None


def _none_made(run: Run, _evidence: Evidence) -> str | None:
    fact = run.facts.get("activations.loss")
    if fact is not None and fact.kind in ("default", "assumed"):
        return None  # what a framework usually does is no evidence of what this run did
    return f"the {run.job.activations.loss} loss makes no whole logits" if run.job.activations.loss in NO_LOGITS else None


def _evaluating(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes in evaluation" if in_phase(evidence, "eval") else None


RULE = Rule(
    id="logits",
    tier="batch",
    title="The logits and their loss are what fills the card",
    cleared="No tensor of the size of the logits is at the failing moment.",
    prior=-0.7,
    needs=("model.name", "batch.micro_batch", "batch.seq_len"),
    explains=("forward", "loss", "backward"),
    marks=(
        Mark(
            "logits-request",
            4.0,
            "the request is a tensor of logits",
            "micro_batch x seq_len x vocab, in 2 or 4 bytes (transformers ForCausalLMLoss)",
            when=_request,
        ),
        Mark("logits-request-among", 2.0, "the request can be a tensor of logits", "the same product; another tensor has the same size", when=_also),
        Mark("logits-told", 3.0, "told tokens by the vocabulary", "the same product, of the sizes that are written beside it", when=_told_sizes),
        Mark("logits-solved", 2.5, "logits for a round number of tokens", "the same product, solved for the tokens", when=_solved_one),
        Mark("logits-solved-free", 1.6, "logits for some round number of tokens", "the same, with batch and length both free: chance hits", when=_solved_free),
        Mark(
            "logits-frame",
            3.5,
            "the loss or the log-probabilities are being computed",
            (
                "transformers loss_utils / modeling forward logits.float(); trl _get_per_token_logps, selective_log_softmax; verl "
                "logprobs_from_logits, entropy_from_logits"
            ),
            pattern=_MAKES,
            on="frame",
            when=lambda _, e: None if _still_inside(e) else "",
        ),
        Mark(
            "logits-collected",
            3.0,
            "the outputs of all ranks or cards are collected",
            "torch/nn/parallel/data_parallel.py forward: self.gather(outputs, self.output_device); axolotl utils/ctx_managers/sequence_parallel.py "
            "_gather_outputs: of a language model they are its logits",
            pattern=r"nn/parallel/(?:data_parallel\.py:forward: .*gather|scatter_gather\.py:gather|_functions\.py:forward: .*gather|comm\.py:gather)|"
            r":_?gather_outputs?\b",
            on="frame",
            when=lambda run, e: "" if run.architecture is not None or any(f.file.startswith("transformers/") for f in e.frames) else None,
        ),
        Mark(
            "logits-program",
            3.5,
            "the largest buffer of the compiled program has the vocabulary as its last dimension",
            "xla buffer assignment: op_name and shape of the largest buffers",
            pattern=r"(?:lm_head|logits|unembed|cross_entropy|log_softmax|softmax_cross|output_projection|/attend\b|head/)\S* -> \w+\[(?:\d+,)+\d{5,6}\]",
            on="frame",
        ),
        Mark(
            "logits-shape",
            2.5,
            "a tensor of tokens by vocabulary is what is alive",
            "logits are the only tensors of a training step with the vocabulary as their last dimension, beside embedding and head",
            pattern=r"\bG(i)?B\b.{0,60}\[\s*[\w*×, ]{1,40},\s*(vocab\w*|V|n_vocab)\s*\]|\[\s*[\w*×, ]{1,40},\s*(vocab\w*|V|n_vocab)\s*\].{0,60}\bG(i)?B\b",
            on="line",
        ),
        Mark(
            "logits-innermost",
            2.8,
            "logits are being worked on",
            "log-probabilities and entropies are made of tensors of micro_batch x seq_len x vocab, whoever wrote the function",
            when=_innermost,
        ),
        Mark("logits-fused", -2.5, "no logits", "fused linear cross entropy works chunk by chunk", when=_none_made, rests_on=("activations.loss",)),
        Mark("logits-evaluation", -2.0, "in evaluation", "the failing phase", when=_evaluating),
        Mark("logits-too-early", -3.0, "fails before", "weights are placed before any activation", when=weights_exceed),
        *static_state.against("logits"),
        *share_marks("logits", "logits", some=0.25, most=0.45, weights=(0.8, 1.0), noun="logits and their copies"),
        *snapshots.part_marks("logits", "logits"),
    ),
    remedies=("fused-linear-loss", "chunked-loss", "smaller-micro-batch"),
    fires=(
        Example(
            "told sizes",
            text="about 12k tokens in a micro batch, vocab 152k\n    loss.backward()\n"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.81 GiB.\n",
        ),
        Example(
            "a trainer's own log-probabilities",
            text=trace("my_rl/worker.py|old_logp|return gather_last(full_logits[:, :-1].log().float(), ids)") + "torch.OutOfMemoryError: CUDA out of memory.\n",
        ),
        Example(
            "logits in fp32",
            job=job(batch="{micro_batch: 6, seq_len: 8192}", activations="{attention: flash-2, checkpointing: full, loss: full-fp32}"),
            text=trace("transformers/models/llama/modeling_llama.py|forward|logits = logits.float()") + oom("23.48 GiB", allocated=60.0, free=17.0),
        ),
        Example(
            "the request alone",
            job=job(
                "Qwen/Qwen2.5-7B-Instruct",
                batch="{micro_batch: 1, seq_len: 12288}",
                activations="{attention: flash-2, checkpointing: full}",
                hardware="{gpu: h100-80gb}",
            ),
            text=trace("torch/autograd/graph.py|_engine_run_backward") + oom("6.96 GiB", allocated=70.0, free=6.7),
        ),
    ),
    quiet=(
        Example("in the step", text=trace("torch/optim/adamw.py|_multi_tensor_adamw") + oom("512.00 MiB", allocated=76.5)),
        Example("a router's logits", text=trace("model.py|forward|router_logits = self.gate(hidden)") + oom("512.00 MiB", allocated=76.5)),
    ),
)
