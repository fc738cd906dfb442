"""SpatialIR, a graph of computes on tiles, and the passes that build it, place it on cores and schedule it."""

from raptor.spatial.choose_order import choose_order
from raptor.spatial.choose_placement import choose_placement
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.mesh_placement import place_cores
from raptor.spatial.partition import partition
from raptor.spatial.placed_graph import Fetch, Partition, PlacedGraph, Schedule
from raptor.spatial.refine import DecisionProgress, refine
from raptor.spatial.scheduling.list_schedule import schedule
from raptor.spatial.verification.verify_placed import verify_partition, verify_placed, verify_schedule
from raptor.spatial.verification.verify_tiles import verify_spatial

__all__ = [
    "DecisionProgress",
    "Fetch",
    "Partition",
    "PlacedGraph",
    "Schedule",
    "SpatialGraph",
    "choose_order",
    "choose_placement",
    "partition",
    "place_cores",
    "refine",
    "schedule",
    "verify_partition",
    "verify_placed",
    "verify_schedule",
    "verify_spatial",
]
