"""Trims compiled programs to chips (`raptor trim`)."""
