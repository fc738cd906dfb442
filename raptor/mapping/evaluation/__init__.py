"""Evaluation of decisions, before anything is lowered: the work of every core, and the time of a sample."""
