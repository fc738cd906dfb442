"""Compares programs in the built-in simulator: `cost` measures one, `mappings` searches for the best of several,
and `mixed` for the layers of few bits."""
