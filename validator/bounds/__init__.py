"""Checks lower bounds on the time of every mapping of a model, without the compiler and without a solver."""
