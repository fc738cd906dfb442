"""Graph to SpatialIR: tiles and crossbar matrices, true for any crossbar machine."""

from raptor.spatial.arrange import arrange_cores
from raptor.spatial.depthwise import choose_depthwise
from raptor.spatial.fold import fold_relu
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.lower import partition
from raptor.spatial.order import order_computes
from raptor.spatial.verify import verify

__all__ = ["SpatialGraph", "arrange_cores", "choose_depthwise", "fold_relu", "order_computes", "partition", "verify"]
