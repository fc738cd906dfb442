"""The decision: how each layer is computed, and on which cores."""
