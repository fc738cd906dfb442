"""Evaluation of points of a study, in other processes."""
