"""Rewrites of the channels between layers: those that change nothing are dropped, others are put into another order."""
