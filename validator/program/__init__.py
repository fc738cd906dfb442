"""A program and its files: loaded or raw programs, weights, tables, codings and the list of segments."""
