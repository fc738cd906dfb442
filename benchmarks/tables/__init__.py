"""Stores what benchmarks print as tables of the pages, and compares stored tables with the code."""
