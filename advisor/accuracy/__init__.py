"""How far the estimator is off, on any file of measured runs."""

from advisor.accuracy.measured import Measurement, MeasurementError, load
from advisor.accuracy.score import score

__all__ = ["Measurement", "MeasurementError", "load", "score"]
