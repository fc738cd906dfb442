"""Decoders: steps of a session, generated tokens, and the comparison with the model whose states grow."""
