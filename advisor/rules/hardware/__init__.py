"""The cause of last resort: the job is too large for these cards."""
