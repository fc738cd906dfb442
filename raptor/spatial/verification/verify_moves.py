"""Verifier of rearranged tensors: each element comes from the operand element that the Graph's `Move` names."""

from raptor.common.errors import VerifyError
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.verification.element_origins import ElementOrigins, region_entries


def verify_moves(graph: SpatialGraph, origins: ElementOrigins) -> None:
    """Raises `VerifyError` unless each element of a rearranged tensor has the origin that its `Move` names."""
    for name, use in graph.move_of.items():
        tensor = graph.tensors[name]
        for part in tensor.parts:
            wanted = region_entries(use.sources, tensor.image, part.region)
            for wrong in origins.find_wrong(part.tile, use.inputs, wanted)[:1].tolist():
                where = f"element {wrong} of {part.tile}, {part.region} of {name}"
                raise VerifyError(f"spatial: {tensor.node}: {where}, is not the element that the node moves there")
