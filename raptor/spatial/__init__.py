"""Graph to SpatialIR: tiles and crossbar matrices, true for any crossbar machine."""

from raptor.spatial.fold import fold_relu
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.lower import partition
from raptor.spatial.verify import verify

__all__ = ["SpatialGraph", "fold_relu", "partition", "verify"]
