"""Rounds: run a model that is larger than the chip in parts, and rewrite the crossbars before each part."""
