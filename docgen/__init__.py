"""Generates pages and drawings of the documentation from the code: `make docs-generate`."""
