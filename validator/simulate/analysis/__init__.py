"""Analyses of a run: energy, critical path, least work, use of links, deadlocks, and the Chrome trace."""
