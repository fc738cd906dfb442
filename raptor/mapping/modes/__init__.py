"""Modes: the ways to compute one layer, with the cores, the crossbars and the time of each."""
