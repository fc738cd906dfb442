"""Time and memory of our own commands, beside baselines of the same run."""
