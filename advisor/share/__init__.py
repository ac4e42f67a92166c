"""A diagnosis as a link and back: the job and the facts of an error as readable query parameters, never its text.

Each job field is a parameter under its dotted path (``batch.seq_len=4096``); a failure's counters are ``error.requested=9.79GiB`` and
alike, a card's figures ``device.1=...``, and ``marks`` names what patterns matched in the text, so that the same rules speak again. Only
what was written is in it, with ``v``, the form's version. Everything in a link is checked like any other input and all results are
recomputed; what is unknown or wrong is dropped and named.
"""

from advisor.share.allowing import allowed_of, with_allowed
from advisor.share.form import ALLOW, MAX_LINK, MEASURED, TICKS, VERSION, Link
from advisor.share.measured import Measured, measured_of, with_measured
from advisor.share.opening import Opened, find_link, open_link, parameters_of, ticks_of
from advisor.share.writing import as_text, is_local, link, with_ticks

__all__ = [
    "ALLOW", "MAX_LINK", "MEASURED", "TICKS", "VERSION", "Link", "Measured", "Opened", "allowed_of", "as_text", "find_link", "is_local", "link",
    "measured_of", "open_link", "parameters_of", "ticks_of", "with_allowed", "with_measured", "with_ticks",
]  # fmt: skip
