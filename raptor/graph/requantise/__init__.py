"""Requantisation: its definition, the synthesis of recipes of 32-bit integers, and their proof."""
