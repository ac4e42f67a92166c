"""What every section of a job file shares: frozen, bounded, and unknown keys are errors."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Layout = Literal["none", "nf4", "fp4", "int8", "gptq-int4", "awq-int4", "fp8", "mxfp4"]
Wide = Literal["fp32", "bf16", "fp16"]


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic would read true as 1
        raise ValueError("a number is expected, not true or false")
    return value


NUMBER = BeforeValidator(_no_truth_value)
Count = Annotated[int, Field(ge=1, le=1_048_576), NUMBER]
Tokens = Annotated[int, Field(ge=1, le=1 << 30), NUMBER]
Elements = Annotated[int, Field(ge=0, le=1 << 44), NUMBER]
Gib = Annotated[float, Field(ge=0, le=1_000_000), NUMBER]
Fraction = Annotated[float, Field(gt=0, le=1), NUMBER]


class Section(BaseModel):
    """Base of every part of a job: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False, defer_build=True)
