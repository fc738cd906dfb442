"""The cycle model of pimsim-nn: its chip, its tables, and the compiled kernels."""
