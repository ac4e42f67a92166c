"""Causes in activations, logits and batch shape."""
