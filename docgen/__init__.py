"""Pages and drawings of the documentation that are generated from the code: `make docs-generate`."""
