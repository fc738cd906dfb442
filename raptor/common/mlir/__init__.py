"""MLIR's textual form: its values, and a reader of the generic form, which knows no dialect."""
