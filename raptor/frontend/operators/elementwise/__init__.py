"""Importers of element-wise operators."""
