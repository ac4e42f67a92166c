"""Causes where state is replicated that could be divided or moved."""
