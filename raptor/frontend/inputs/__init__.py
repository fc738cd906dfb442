"""Inputs of a model: static shapes, and values that turn inputs into constants."""
