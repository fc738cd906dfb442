"""Trains float models under the errors of cells (`raptor train`). Needs PyTorch, which RAPTOR does not install."""
