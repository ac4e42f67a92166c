"""Two-way framework tables: which key of which framework is which field of a job, read and written through the same entry."""

from advisor.frameworks.decode import Decoded, decode
from advisor.frameworks.key import Key
from advisor.frameworks.settings import settings
from advisor.frameworks.table import Table, names, stack, table

__all__ = ["Decoded", "Key", "Table", "decode", "names", "settings", "stack", "table"]
