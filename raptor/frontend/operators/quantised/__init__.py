"""Importers of quantised operators, and of operators on quantised values."""
