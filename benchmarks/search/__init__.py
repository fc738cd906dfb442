"""Judges samplers and estimators of `raptor explore` on stored results."""
