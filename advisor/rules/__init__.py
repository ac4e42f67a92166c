"""Rules: one file a cause, in the folder of its tier. :mod:`advisor.rules.engine` collects and judges them."""
