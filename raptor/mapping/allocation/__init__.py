"""Allocation: how layers share the cores of a chip, and which layers get more of them."""
