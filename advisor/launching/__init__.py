"""Wraps a launch without changing it: the output passes through untouched, and a memory failure is explained under it. Knows no torch."""
