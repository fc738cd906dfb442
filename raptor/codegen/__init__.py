"""Machines that a program can be compiled for: a package of its own for each, after one protocol."""
