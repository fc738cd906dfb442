"""Graph to SpatialIR: tiles and crossbar matrices, true for any crossbar machine."""

from raptor.mapping.depthwise import choose_depthwise
from raptor.mapping.fold_relu import fold_relu
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.mesh_placement import arrange_cores
from raptor.spatial.partition import partition
from raptor.spatial.schedule import order_computes
from raptor.spatial.verify_tiles import verify

__all__ = ["SpatialGraph", "arrange_cores", "choose_depthwise", "fold_relu", "order_computes", "partition", "verify"]
