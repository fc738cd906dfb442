"""Lowering of the Graph to SpatialIR: by tile, line by line, token by token, or pixel by pixel."""
