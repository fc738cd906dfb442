"""Judges a run: comparison within a tolerance, by float64, or bit by bit; and the report."""
