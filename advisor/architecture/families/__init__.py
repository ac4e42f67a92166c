"""Readers of Hugging Face configs, one file a group of families; :data:`READERS` maps ``model_type`` to its module."""
