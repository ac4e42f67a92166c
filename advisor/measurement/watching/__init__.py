"""Watching a user's own run: what is held twice, what is wider than meant, what grows, whether checkpoints recompute what they should."""
