"""Text of MLIR: classes for types and attributes, and a reader of the generic form, which knows no dialect."""
