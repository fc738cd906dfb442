"""Rounds: runs a model that is larger than the chip in parts, and writes the crossbars before each part."""
