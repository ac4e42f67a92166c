"""Causes outside the job's own GPU memory: looked for first, because nothing in the job can fix them."""
