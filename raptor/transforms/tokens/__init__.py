"""Rewrites of sequences: layouts in which tokens are pixels of lines, and what has to come before them."""
