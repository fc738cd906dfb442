"""Changes float models so that errors of cells cost less (`raptor harden`)."""
