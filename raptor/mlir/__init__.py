"""MLIR text of the intermediate forms: writers, readers, and the table of their dialects (docs/reference/mlir.md)."""
