"""Pages and drawings of the documentation that are made from the code: `make docs-generate`."""
