"""Utilities of all packages: errors, console output, argument checks, file access, JSON schemas, compiled kernels."""
