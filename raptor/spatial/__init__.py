"""Graph to SpatialIR: tiles and crossbar matrices, true for any crossbar machine."""

from raptor.spatial.ir import SpatialGraph
from raptor.spatial.mesh_placement import arrange_cores
from raptor.spatial.partition import partition
from raptor.spatial.schedule import order_computes
from raptor.spatial.verify_tiles import verify

__all__ = ["SpatialGraph", "arrange_cores", "order_computes", "partition", "verify"]
