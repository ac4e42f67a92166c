"""What every section of a job file shares: frozen, bounded, and unknown keys are errors.

Structs check their content when a mapping is converted (:func:`advisor.job.checking.validated`), not when one is constructed in Python.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, json

Layout = Literal["none", "nf4", "fp4", "int8", "gptq-int4", "awq-int4", "fp8", "mxfp4"]
Wide = Literal["fp32", "bf16", "fp16"]

Count = Annotated[int, Meta(ge=1, le=1_048_576)]
Tokens = Annotated[int, Meta(ge=1, le=1 << 30)]
Elements = Annotated[int, Meta(ge=0, le=1 << 44)]
Gib = Annotated[float, Meta(ge=0, le=1_000_000)]
Fraction = Annotated[float, Meta(gt=0, le=1)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every part of a job: frozen, and unknown keys are errors."""

    def written(self) -> dict[str, Any]:
        """What is known, in JSON's types."""
        found: dict[str, Any] = json.decode(json.encode(self, enc_hook=_said))
        return found


def _said(value: Any) -> Any:
    """What a config of a live object may hold beside JSON's types: a number of numpy, a version or dtype of torch."""
    return value.item() if callable(getattr(value, "item", None)) else str(value)
