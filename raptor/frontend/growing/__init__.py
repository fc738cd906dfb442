"""Decoders whose caches grow by a row with every step, rewritten to steps on caches of a fixed capacity."""
