"""Causes where the same bytes are held more than once, or longer than needed."""
