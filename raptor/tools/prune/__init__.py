"""Pruning of whole tiles: the weights of a crossbar become 0 together, so that the crossbar vanishes."""
