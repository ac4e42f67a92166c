"""The parts of the plan's search: measuring candidates, what may be used when, the search itself, and the words about it."""
