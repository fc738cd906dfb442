"""Finds the sums that a layer with a ReLU computes before the ReLU: verifiers trace them back to products."""

from dataclasses import replace

from msgspec import structs

from raptor.common.errors import VerifyError
from raptor.spatial.ir import SpatialGraph, TensorPart, TensorParts
from raptor.spatial.operations import Vector


def sums_before_relu(graph: SpatialGraph, key: str, tensor: TensorParts) -> TensorParts:
    """Returns the tensor before the ReLU of a layer. Raises `VerifyError` if a part of the output has no ReLU."""
    body = (op for compute in graph.computes if compute.layer == key for op in compute.body)
    clipped = {op.result.name: op.sources for op in body if isinstance(op, Vector) and op.function == "relu"}
    parts: list[TensorPart] = []
    for part in tensor.parts:
        sources = clipped.get(part.tile.name, ())
        if len(sources) != 1 or sources[0].elements != part.tile.elements:
            raise VerifyError(f"spatial: {tensor.node}: {part.tile} is not clipped by the layer's ReLU")
        parts.append(structs.replace(part, tile=sources[0]))
    return replace(tensor, parts=tuple(parts))
