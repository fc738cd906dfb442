"""Runs of a loaded program: inputs, crossbar models, and the run from inputs to outputs."""
