"""Importers of integers: quantised values as exact expressions, widening, and lookup tables."""
