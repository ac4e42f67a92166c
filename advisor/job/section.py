"""What every section of a job file shares: frozen, bounded, and unknown keys are errors."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Layout = Literal["none", "nf4", "fp4", "int8", "gptq-int4", "awq-int4", "fp8", "mxfp4"]
Wide = Literal["fp32", "bf16", "fp16"]
Count = Annotated[int, Field(ge=1, le=1_048_576)]
Tokens = Annotated[int, Field(ge=1, le=1 << 30)]
Elements = Annotated[int, Field(ge=0, le=1 << 44)]
Gib = Annotated[float, Field(ge=0, le=1_000_000)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """Base of every part of a job: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False, defer_build=True)
