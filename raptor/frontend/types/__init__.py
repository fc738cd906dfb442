"""Types and ranges: operand types, and proved bounds of integers."""
