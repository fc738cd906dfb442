"""The machine C: one C program for a chip of cores with memories and matrix units (docs/how-to/c.md)."""
