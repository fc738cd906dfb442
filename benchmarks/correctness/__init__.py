"""Measures how accurate programs are, and how often the verdict about one is wrong."""
