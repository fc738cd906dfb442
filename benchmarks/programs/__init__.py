"""Figures of compiled programs on the modelled chip, and the networks that are compiled for them."""
