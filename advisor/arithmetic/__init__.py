"""Who holds how many bytes, part by part, from the numbers of a run: closed forms, well under a millisecond."""

from advisor.arithmetic.context import CannotEstimate, Context
from advisor.arithmetic.estimating import estimate

__all__ = ["CannotEstimate", "Context", "estimate"]
