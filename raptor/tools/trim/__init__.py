"""Trims compiled programs to chips (`raptor trim`)."""

from raptor.tools.trim.trim_output import LayerTrim, TrimmedProgram, trim

__all__ = ["LayerTrim", "TrimmedProgram", "trim"]
