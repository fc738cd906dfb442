"""Compiled loops: decorators for numba, with a cache of machine code that is safe for concurrent processes."""
