"""From what a person pastes to a report: evidence and run, ranked causes, the plan, and the next question."""

from advisor.diagnosis.whole import diagnose, diagnose_reading, replanned

__all__ = ["diagnose", "diagnose_reading", "replanned"]
