"""Causes where something is wider, slower or larger than was asked for."""
