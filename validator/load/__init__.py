"""Loads output directories, with one segment or several, and checks everything that needs no run."""
