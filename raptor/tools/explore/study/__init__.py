"""The study file: options, search space, metrics."""
