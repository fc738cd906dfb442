"""Verifiers of SpatialIR and of the placed and scheduled graph."""
