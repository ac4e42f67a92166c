"""Where a fitting run gives away speed for memory that nobody needs."""
