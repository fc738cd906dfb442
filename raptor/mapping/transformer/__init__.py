"""Transformers: cores of the layers of tokens and of the attentions between them."""
