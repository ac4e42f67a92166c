"""What a loss holds for one token and one vocabulary entry, by loss form and by whose code computes it."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

UPCAST_COPY_UNTIL = (4, 49)  # transformers 4.49 pads the labels where 4.46-4.48 copied the shifted logits
LOSS_FUNCTION_SINCE = (4, 46)  # transformers 4.46 moved the loss to loss_utils; before, lm_head's output was rebound to its fp32 cast
RAW_REMOTE = frozenset(
    {"qwen", "qwen2", "baichuan"}
)  # remote code whose loss shifts the logits as they are (modeling_qwen.QWenLMHeadModel); Qwen 2 never needed any
SCALED = frozenset({"cohere", "cohere2", "granite", "granitemoe", "granitemoeshared", "granitemoehybrid", "falcon_h1"})  # the logits once more, times a scale
TORCHTUNE_DROPS_SINCE = (0, 3)  # recipes: del logits before loss.backward()
TORCHTUNE = "torchtune modules/transformer.py TransformerDecoder.forward, recipes/lora_finetune_single_device.py train"
OWN_LOSS = frozenset({"gpt_bigcode", "gpt2", "gpt_neo", "gpt_neox", "gptj", "falcon", "bloom", "opt", "mpt", "phi-msft", "codegen"})


class Loss(Struct, frozen=True):
    """Bytes of one token and vocabulary entry: the largest moment of the loss's forward, what stays until its backward, and the largest of that.

    ``outputs``: what a caller that keeps the model's outputs still holds afterwards.
    """

    forward: float
    backward: float
    outputs: float
    why: str
    source: str
    narrow: float = 0.0  # of the forward's: what lies in blocks smaller than the backward's, which they can not serve
    wide: float = 4.0  # bytes of an entry in those larger blocks

    @property
    def cached(self) -> float:
        """Bytes that the blocks of the loss take in the allocator's cache: the most of each size, since a narrow block serves no wide request.

        ForCausalLMLoss since 4.49: logits 2, and three fp32 blocks in the backward pass: 14, where at most 12 are alive at once.
        """
        return max(self.forward, self.narrow + self.largest)

    @property
    def largest(self) -> float:
        """Bytes of an entry in the loss's largest blocks: what a longer batch than any before can not take from the cache."""
        return self.wide * (self.backward // self.wide)


@lru_cache(maxsize=256)
def materialised(form: str, logits: int, version: tuple[int, ...] | None, own_loss: bool, autocast: bool) -> Loss:
    """A loss on whole logits in Hugging Face models. ``logits``: bytes of an element as the head gives them.

    ``full-fp32``, loss_utils.ForCausalLMLoss: logits, their fp32 copy, (4.46-4.48: a contiguous shifted copy,) the fp32 log-softmax, which
    stays. Backward: log-softmax, the gradient of the picked entries spread to all, and the gradient of the softmax, all fp32.
    Models with a loss of their own (GPT-BigCode and others until 4.49) do not upcast: what is fp32 there comes from autocast.
    """
    if version is None:
        version = (99,)
    shift = version < UPCAST_COPY_UNTIL
    if own_loss and shift:
        return own(form, logits, autocast)
    up = 4
    if version < LOSS_FUNCTION_SINCE:
        held, note, outputs = 0, "the fp32 cast took the place of the logits", 4.0
    else:
        held, note, outputs = (logits if logits < 4 else 0), "logits", float(logits)
    copy = up if shift else 0
    if form == "fused":  # Triton cross entropy on the fp32 logits: keeps them, writes the gradient over them
        forward = held + up + copy
        backward = (copy or up) + (up if shift else 0)  # gradient in place, then the shift's backward fills zeros of the whole
        why, source = f"{note} + fp32 + shifted copy; gradient in place", "fused cross entropy on ForCausalLMLoss's logits"
        return Loss(forward, max(backward, up + logits), outputs, why, source, narrow=float(logits) if logits < 4 else 0.0)
    if form == "full":
        soft = 4 if autocast else logits
        return Loss(
            logits + soft + (soft if soft > logits else 0),
            3 * soft,
            float(logits),
            "logits + log-softmax; backward: log-softmax + its two gradients",
            "torch.nn.functional.cross_entropy",
            narrow=logits if soft > logits else 0.0,
            wide=float(soft),
        )
    forward = held + up + copy + 4
    return Loss(
        forward,
        12.0,
        outputs,
        f"{note} + fp32 + shifted copy + fp32 log-softmax; backward: log-softmax 4 + two fp32 gradients 8",
        "transformers loss_utils.ForCausalLMLoss",
        narrow=float(logits) if logits < 4 else 0.0,
    )


def own(form: str, logits: int, autocast: bool) -> Loss:
    """Shift, then ``CrossEntropyLoss`` in the logits' dtype: bf16 2 + copy 2 + log-softmax 2; under autocast the last runs in fp32 after a cast."""
    wide = 4 if autocast and logits < 4 else logits
    upcast = wide if wide > logits else 0
    if form == "fused":
        why = "logits + shifted copy (+ fp32 cast under autocast); gradient in place"
        return Loss(2 * logits + upcast, 2 * logits + upcast, float(logits), why, "fused cross entropy after the model's own shift")
    return Loss(
        2 * logits + upcast + wide, max(3 * wide, 2 * wide + upcast), float(logits), "logits + shifted copy (+ cast) + log-softmax; backward: two gradients",
        "the model's own loss: lm_logits[..., :-1, :].contiguous(), CrossEntropyLoss", narrow=2.0 * logits if wide > logits else 0.0, wide=float(wide),
    )  # fmt: skip


def torchtune(logits: int, version: tuple[int, ...] | None) -> Loss:
    """A loss on whole logits in torchtune: its decoder widens them whatever the loss (modules/transformer.py ``output(h).float()``, 0.1 to 0.6).

    Before 0.3, when such a loss was the recipes' default, the shifted logits are a copy that the loop names until its next step, and the vocabulary is
    the second dimension, so that log-softmax copies them once more. Since then the labels are shifted, and the logits dropped before backward.
    """
    narrow = float(logits) if logits < 4 else 0.0
    if version is not None and version >= TORCHTUNE_DROPS_SINCE:
        return Loss(max(narrow + 4, 8.0), 12.0, 0.0, "fp32 logits + log-softmax; backward: log-softmax + two gradients", TORCHTUNE, narrow=narrow)
    why = "fp32 logits, shifted + the same, contiguous + log-softmax; backward: log-softmax + two gradients, beside the shifted that are named"
    return Loss(12.0, 12.0, 4.0, why, TORCHTUNE, narrow=narrow)
