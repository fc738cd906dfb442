"""Refinement of a partition: passes that move computes between virtual cores or add some."""
