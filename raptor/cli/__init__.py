"""Command line `raptor`."""
