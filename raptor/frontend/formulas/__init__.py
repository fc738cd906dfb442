"""Builders of element-wise formulas, comparisons, selections and layouts, which importers use."""
