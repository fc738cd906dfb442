"""Lists the tensors that a streaming program assembles from rows or cuts into rows, with the time of the copies."""

from dataclasses import dataclass

from raptor.spatial import SpatialGraph
from raptor.spatial.operation_costs import CostModel
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True)
class UnstreamedTensor:
    """A tensor that is assembled from rows or cut into rows, because an operator does not stream.

    node: the ONNX node that computes it. work_ns: estimated time of the copies, without messages.
    """

    tensor: str
    node: str
    work_ns: float


def find_unstreamed_tensors(cut: SpatialGraph, arch: Target) -> tuple[UnstreamedTensor, ...]:
    """Returns the tensors that the computes of a mapping by line put together or cut, most work first."""
    costs = CostModel(arch, cut.filters)
    work_ns: dict[str, float] = {}
    for compute in cut.computes:
        # Only `raptor.spatial.lowering.line_lowering` makes computes of type Move; a tensor of one line needs no
        # assembly.
        if compute.op_type == "Move" and cut.tensors[compute.layer].image.rows > 1:
            work_ns[compute.layer] = work_ns.get(compute.layer, 0.0) + costs.work_ns(compute)
    most_first = sorted(work_ns.items(), key=lambda item: -item[1])
    return tuple(UnstreamedTensor(name, cut.tensors[name].node, ns) for name, ns in most_first)
